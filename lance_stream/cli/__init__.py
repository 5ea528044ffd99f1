"""The command line, `lance-stream`: read tables, follow their changes, maintain them.

    commands     the table of commands: the only place that names a new one
    <command>    a module per command, called like it: its arguments, and its action
    grammar      what all commands have in common: options, abbreviations, suggestions
    arguments    arguments of several commands: the table and its store, a version, JSON
    main         runs a command: its errors, and their exit codes
    output       text for people and JSON for programs, and nothing that steers a terminal

To add a command, write its module with a `command` and list it in `commands`. A module imports at
the top only what its arguments need; what its action needs, the action imports: help and completion
load every command, and must not load Arrow. Nothing here starts Spark.
"""
