"""What stands on the pages, as plain values: the views fill them in, the templates mark them up.

A page's values do not change while nothing happens. Times are in them as instants, not as "3 min ago", so that equal
values mean an unchanged page.
"""
