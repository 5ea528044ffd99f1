"""Replaces column names in the text of a SQL expression."""

from collections.abc import Iterator, Sequence

import sqlglot
from sqlglot import Token, TokenType

from lance_stream.expressions.predicates import quote_path
from lance_stream.expressions.rules import DIALECT


def rename_paths(text: str, settled: dict[tuple[str, ...], tuple[str, ...]]) -> str:
    """Return an expression with some column paths replaced."""
    made, place = "", 0
    for chain in _chains(sqlglot.tokenize(text, read=DIALECT)):
        wanted = settled.get(tuple(token.text for token in chain))
        if wanted is not None:
            made += text[place : chain[0].start] + quote_path(wanted)
            place = chain[-1].end + 1
    return made + text[place:]


def _chains(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield the sequences of names joined by dots; names of types are skipped."""
    chain: list[Token] = []
    before: TokenType | None = None
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        if token.token_type is TokenType.DOT:
            before = token.token_type
            continue
        if chain and before is not TokenType.DOT:
            yield chain
            chain = []
        is_type = before in (TokenType.DCOLON, TokenType.ALIAS) or (
            after is not None and after.token_type is TokenType.STRING and _is_word(token)
        )
        if token.token_type is not TokenType.STRING and not is_type:
            chain.append(token)
        before = token.token_type
    if chain:
        yield chain


def _is_word(token: Token) -> bool:
    return token.text.upper() in ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMP_NTZ", "X")
