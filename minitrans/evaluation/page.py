"""A comparison as one HTML file that needs nothing else: no network, no script."""

import html
from collections.abc import Sequence
from difflib import SequenceMatcher

from minitrans.evaluation.comparison import BOOTSTRAP, RANDOMISATION, Change, Comparison
from minitrans.evaluation.metrics import TITLES

MOST = 100
"""Sentences shown."""


def comparison_page(comparison: Comparison, changes: Sequence[Change]) -> str:
    """The page: scores and p-values, then the sentences that changed most, worst first.

    Parameters
    ----------
    changes
        Of :func:`minitrans.evaluation.comparison.changes`, worst first.
    """
    shown = most_changed(changes)
    system, baseline = comparison.system, comparison.baseline
    heading = f"{system.name} against {baseline.name}"
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(heading)}</title>",
            f"<style>{_STYLE}</style></head><body><main>",
            f"<h1>{html.escape(system.name)} <small>against</small> {html.escape(baseline.name)}</h1>",
            f"<p>{_about(comparison)}</p>",
            _scores(comparison),
            f"<h2>{_heading(len(shown), len(changes))}</h2>",
            f"<p class=key>{_KEY}</p>",
            *(_sentence(change) for change in shown),
            "</main></body></html>",
            "",
        ]
    )


def most_changed(changes: Sequence[Change]) -> list[Change]:
    """The 50 that lost most and the 50 that gained most, more of one kind where the other has fewer.

    Of the largest differences alone a much better system would show nothing that it does worse.
    """
    losses = [change for change in changes if change.difference < 0]
    gains = [change for change in changes if change.difference >= 0]
    num_losses = min(len(losses), max(MOST // 2, MOST - len(gains)))
    return losses[:num_losses] + gains[len(gains) - min(len(gains), MOST - num_losses) :]


def marked(words: Sequence[str], others: Sequence[str], tag: str) -> str:
    """The words of one translation, those that the other one lacks in ``tag``, escaped for HTML."""
    pieces = []
    for kind, begin, end, _, _ in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        text = html.escape(" ".join(words[begin:end]))
        if text:
            pieces.append(text if kind == "equal" else f"<{tag}>{text}</{tag}>")
    return " ".join(pieces)


def _about(comparison: Comparison) -> str:
    card = comparison.system.card
    same = card.sentences - comparison.unlike
    note = f" {html.escape(card.note)}." if card.note else ""
    return (
        f"{card.sentences:,} sentences of the split {html.escape(card.split)}: "
        f"{comparison.better:,} better, {comparison.worse:,} worse by chrF2++ of the sentence, "
        f"{same:,} translated with the same words.{note}"
    )


def _scores(comparison: Comparison) -> str:
    """The table of scores and p-values."""
    heads = ("score", "baseline", "system", "difference", "p bootstrap", "p randomised")
    rows = [
        f"<tr><th>{html.escape(TITLES[name])}</th><td>{found.baseline:.2f}</td><td>{found.system:.2f}</td>"
        f"<td>{_signed(found.difference)}</td><td>{found.p_bootstrap:.4f}</td>"
        f"<td>{found.p_randomisation:.4f}</td></tr>"
        for name, found in comparison.differences.items()
    ]
    head = "".join(f"<th>{name}</th>" for name in heads)
    signatures = "<br>".join(
        html.escape(signature)
        for found in comparison.differences.values()
        for signature in (found.bootstrap_signature, found.randomisation_signature)
    )
    return (
        f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<p class=key>Paired tests of sacreBLEU: {BOOTSTRAP:,} bootstrap samples, {RANDOMISATION:,} trials "
        "of approximate randomisation. p is the chance of a difference at least as large between equal "
        f"systems.</p><details><summary>Signatures</summary><code>{signatures}</code></details>"
    )


def _heading(shown: int, changed: int) -> str:
    if not changed:
        return "No sentence changed"
    if shown == changed:
        return f"The {changed:,} sentences that changed, worst first"
    return f"{shown:,} of {changed:,} changed sentences: what lost most, then what gained most"


def _sentence(change: Change) -> str:
    """One sentence: what went in, what was expected, and both translations with their own words marked."""
    before, after = change.baseline.split(), change.system.split()
    lines = [
        ("source", "", html.escape(change.source)),
        ("reference", "", html.escape(change.reference)),
        ("baseline", f"{change.baseline_chrf:.1f}", marked(before, after, "del")),
        ("system", f"{change.system_chrf:.1f}", marked(after, before, "ins")),
    ]
    texts = "".join(
        f"<dt>{name}{f' <b>{score}</b>' if score else ''}</dt><dd dir=auto>{text or '<i>(empty)</i>'}</dd>"
        for name, score, text in lines
    )
    mood = "worse" if change.difference < 0 else "better" if change.difference > 0 else "even"
    bleu = f"BLEU {change.baseline_bleu:.1f} → {change.system_bleu:.1f}"
    return (
        f'<section class={mood}><h3>line {change.line:,} <span class="by">{_signed(change.difference)} '
        f"chrF2++</span> <small>{bleu}</small></h3><dl>{texts}</dl></section>"
    )


def _signed(number: float) -> str:
    """With a sign, and a minus that is as wide as a plus."""
    return f"{number:+.2f}".replace("-", "−")


_KEY = (
    "Words that the other translation lacks are marked: <del>of the baseline</del>, "
    "<ins>of the system</ins>. Scores are chrF2++ of the sentence."
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6675; --line: #d9dee5; --page: #ffffff;
  --card: #f6f8fa; --lost: #b3261e; --lost-back: #fde3e1; --won: #116329; --won-back: #d8f3dd; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #343c47;
  --page: #14181d; --card: #1c2128; --lost: #ff938a; --lost-back: #4a1d1a; --won: #7ee08f;
  --won-back: #12391c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin-top: 2rem; }
h3 { font-size: .95rem; margin: 0 0 .5rem; display: flex; flex-wrap: wrap; gap: .25rem .75rem; }
small, .key, dt { color: var(--soft); font-weight: 400; }
.key, details { font-size: .875rem; }
code { font-size: .75rem; overflow-wrap: anywhere; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .9rem .3rem 0; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child { text-align: left; }
thead th { color: var(--soft); font-weight: 400; }
section { background: var(--card); border-left: 4px solid var(--line); border-radius: 4px;
  padding: .75rem 1rem; margin: .75rem 0; }
section.worse { border-color: var(--lost); } .worse .by { color: var(--lost); }
section.better { border-color: var(--won); } .better .by { color: var(--won); }
dl { margin: 0; display: grid; grid-template-columns: 8.5rem 1fr; gap: .25rem .75rem; }
dd { margin: 0; overflow-wrap: anywhere; }
dt b { font-weight: 400; float: right; font-variant-numeric: tabular-nums; }
del { background: var(--lost-back); color: var(--lost); text-decoration: none; border-radius: 3px;
  padding: 0 .15em; }
ins { background: var(--won-back); color: var(--won); text-decoration: none; border-radius: 3px;
  padding: 0 .15em; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .4rem; }
  dt { font-size: .8rem; } dt b { float: none; margin-left: .5rem; }
  table { font-size: .7rem; } th, td { padding-right: .3rem; } th { white-space: normal; } }
"""
