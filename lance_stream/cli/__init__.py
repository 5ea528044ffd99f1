"""The command line, `lance-stream`: read tables, follow their changes, maintain them.

Read `commands` first, then the module of a command:

    commands     the table of commands: the only place to register a new one
    inspect, read, maintain, references, setup
                 one module per command, named after it: its arguments and its action
    grammar      features of all commands: options, abbreviations, suggestions
    arguments    arguments of several commands: the table and its store, a version, JSON
    main         runs a command; turns errors into exit codes
    output       text for people, JSON for programs; escapes control characters

To add a command, write its module with a `command` and list it in `commands`. At the top, a module
imports only what its arguments need; the action imports the rest, because help and completion load
every command and must not load Arrow. Nothing here starts Spark.
"""
