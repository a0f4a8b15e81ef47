from flask.cli import AppGroup

workflows_group = AppGroup("workflows")
