"""Chooses the layout and the codecs of a page.

Read `choose` first. For values of one width it calls `choose_fixed`, for packed structs
`choose_packed`, for byte strings `choose_strings` and `string_dictionaries`. `few_values` makes the
same choices for small pages in a fraction of the time.
"""
