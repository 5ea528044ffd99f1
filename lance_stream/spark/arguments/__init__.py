"""The user's arguments: one table for writers, and one for the options of readers.

Read `table` first, then the others in this order:

    table               what a row of these tables says
    writer_arguments    the arguments of `lance_sink`, and the options of `df.write`
    writer_calls        from parameters and options to these arguments
    reader_options      the options of `spark.read`
    option_values       parses the text of an option
    python_values       checks the value of an argument
    unknown_options     suggests an option for a name that none has
    choices             the modes of a writer, and other closed lists of names

CONTRIBUTING.md describes how to add an argument. `lance_sink` has few parameters: what only a new
table has is an entry of `create_options`, what concerns the store one of `storage_options`.
"""
