"""The pages and the JSON routes: server-rendered, closed unless the app opens them.

Each page is whole at its own URL and works without JavaScript. A part of it is live: it asks the same URL again,
naming what it shows, and is answered 204 as long as that is what there is to show.

`blueprint` puts every view behind its permission, its origin check and the headers. `views` read requests, ask
`service` and `store.reading`, and answer; `pages` holds what stands on a page as plain values; `presentation` marks it
up. Each module of `views` lists its own routes.
"""
