"""Fill the section of docs/security.md on what U_t reveals from what `python -m benchmarks privacy` measured.

Everything between the markers is written here, words and tables; the rest of the page is written by hand.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any

from elmesh import MultiTaskELMClassifier
from readme import RESULTS, ROOT, load

PAGE, PICTURE = ROOT / "docs" / "security.md", "../benchmarks/results/privacy.png"
OWN, OTHER = "site's own model", "neighbour's model"
Row = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def auc(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def share(value: float) -> str:
    return f"{100 * value:.0f}"


def digits_of(error: float) -> int:
    """Say to how many digits something is known that has this relative error."""
    return math.floor(-math.log10(error))


def of_all_and_wrong(labels: dict[str, float]) -> str:
    return f"{share(labels['all'])} / {share(labels['wrong'])}"


def find(table: list[Row], /, **wanted: Any) -> Row:
    return next(row for row in table if all(row[key] == value for key, value in wanted.items()))


def size(row: Row) -> list[str]:
    return [str(row["rows"]), str(row["units"])]


def views(result: Row) -> list[Row]:
    return [*result["figures"]["two classes"], *result["figures"]["ten classes"]]


def opening_section(result: Row) -> list[str]:
    figures, settings = result["figures"], result["settings"]
    errors = [row["gradient_error"] for row in views(result)]
    exact, first = (max(error[view] for error in errors) for view in ("all", "one, first"))
    later = [error["one, later"] for error in errors]
    few, many = find(figures["two classes"], rows=50, units=300), find(figures["two classes"], rows=300, units=30)
    found = find(figures["rows"], data="digits, ten classes", rows=50, rounds=10)
    return [
        "A site never sends rows, labels or `A_t`; it sends `U_t` every round. **That does not keep rows and labels "
        "from a neighbour who wants them.** Everything but the site's own gradient in the rule by which `U_t` is made "
        "is public or has been sent, so the gradient can be worked out:",
        "",
        "    G = H'(H U_t A_t - T) A_t'        H: the site's hidden features, T: its targets, both centred",
        "",
        f"Measured below on {settings['sites']} sites, each number a mean over {settings['draws']} draws (rows: one "
        "draw), against attackers who only listen:",
        "",
        f"- Who sees all that a site says and hears has every round's gradient to {digits_of(exact)} digits. That is "
        "a site's neighbours together: two on a ring, the hub of a star alone, about every leaf. And it is everybody "
        "in a complete graph.",
        f"- One neighbour alone has the first one, to {digits_of(first)} digits: all start from the same U. After "
        f"that it has to guess what the others said, and is {share(min(later))} to {share(max(later))} % off.",
        "- Where a site has fewer rows than there are hidden units, its rows can be told from others (AUC "
        f"{auc(few['auc'][-1])} with {few['rows']} rows and {few['units']} units), and are found themselves: "
        f"{found['near']['0.01']} of {found['rows']} images to a hundredth of a standard deviation, after "
        f"{found['rounds']} rounds. "
        f"Who knows the inputs reads {share(few['labels_first']['all'])} % of the labels from the first message.",
        f"- With ten times as many rows as hidden units, little is left of that: AUC {auc(max(many['auc']))}, "
        f"and {share(many['labels_first']['all'])} % of the labels, where the site's own model guesses "
        f"{share(many['labels_by'][OWN]['all'])} %.",
        "- `A_t` is not secret from those who see everything either.",
        "",
        f"![How well rows are recognised by rounds seen, and digits that were found]({PICTURE})",
        "",
        "The digits are the first of the site's, and below each the nearest of all that the search found.",
        "",
    ]  # fmt: skip


def setting_section(result: Row) -> list[str]:
    columns = result["settings"]["columns"]
    return [
        "### The setting",
        "",
        "Digits of scikit-learn, 64 pixels, dealt out to sites; the classes are the ten digits, or whether a digit is "
        f"less than five. One label in {1 / result['settings']['wrong']:.0f} is wrong on purpose: no model can guess "
        'those, so whoever has them has read them. `method="admm"` on a ring with `init="seed"`, U of '
        f"{columns['2']} columns ({columns['10']} for ten classes), penalties and rho the automatic ones to two "
        "digits. Attackers know the hidden layer, all parameters and the graph, as every agent does. Where an attacker "
        "has to choose something (how many directions to believe in, what to take for noise), it is the best of a few "
        "in hindsight. AUC is how often a row of the site scores better than a fresh one: 0.5 is guessing, and the "
        "same choice in hindsight among random directions comes to at most "
        f"{auc(max(row['auc_luck'] for row in views(result)))}. `python -m benchmarks privacy` measures all of this, "
        "in a few minutes, and `tools/security.py` writes this section.",
        "",
    ]


def membership_section(result: Row) -> list[str]:
    rounds = result["settings"]["rounds"]
    lines = [
        "### Is this row one of the site's?",
        "",
        "Every column of G is a combination of the site's centred rows of H. Gradients of enough rounds span all of "
        "these, if there are fewer rows than units; a candidate that is outside the span is not among them. The site's "
        "mean is not known; the attacker takes that of its own rows.",
        "",
    ]
    for classes in ("two classes", "ten classes"):
        lines += [
            f"AUC, {classes}, from all that the site says and hears, after so many rounds; then from one neighbour's "
            "view after the last; from the last U alone; and for somebody who had all of H'H and the mean, where "
            "there are enough rows for that:",
            "",
            *table(
                ["rows", "units", *map(str, rounds), "one neighbour", "last U", "H'H"],
                [
                    [*size(row), *map(auc, row["auc"]), auc(row["auc_one"][-1]), auc(row["auc_last"]),
                     auc(row["auc_leverage"])]
                    for row in result["figures"][classes]
                ],
            ),
            "",
        ]  # fmt: skip
    grown = find(result["figures"]["two classes"], rows=50, units=100)
    ten = find(result["figures"]["ten classes"], rows=90, units=100)
    union = find(result["figures"]["two classes"], rows=50, units=300)
    ranks = [
        [
            str(row["classes"]),
            str(row["columns"]),
            *(f"{rank:.0f}" for rank in row["rank"]),
            *map(auc, row["auc"]),
            f"{row['error']:.1f}",
        ]
        for row in result["figures"]["by rank"]
    ]
    first = result["figures"]["by rank"][0]
    some = first["rounds"]
    return [
        *lines,
        "The span grows by as many directions a round as the targets have (one for two classes, nine for ten), as long "
        f"as U has that many columns, and slows down when the run settles: {grown['rank'][2]:.0f} after "
        f"{rounds[2]} rounds, {grown['rank'][-1]:.0f} of {grown['rank_there_is']:.0f} after {rounds[-1]} with "
        f"{grown['rows']} rows, {grown['units']} units and two classes; {ten['rank'][2]:.0f} of "
        f"{ten['rank_there_is']:.0f} after {rounds[2]} with {ten['rows']} rows and ten classes. What is found is at "
        f"most {max(grown['outside']):.0e} outside of the true span (sine of the largest angle).",
        "",
        "With more rows than units there is no such span any more, but for a while still a trace: what a site's rows "
        "have most of comes first. One neighbour sees the rows of all other sites mixed up, those of sites that it "
        f"does not know included. As long as these are fewer than the units it is as good as seeing everything "
        f"({result['settings']['sites'] - 1} times {union['rows'] - 1} directions against {union['units']} units), but "
        "does not say whose row it is.",
        "",
        f"What rank and classes change, with {first['rows']} rows and {first['units']} units: directions found and "
        "AUC, after " + ", ".join(map(str, some)) + " rounds.",
        "",
        *table(
            ["classes", "columns of U", *(f"found, {k}" for k in some), *(f"AUC, {k}" for k in some), "test error, %"],
            ranks,
        ),
        "",
    ]


def labels_section(result: Row) -> list[str]:
    rows = []
    for classes in ("two classes", "ten classes"):
        for row in result["figures"][classes]:
            by = row["labels_by"]
            right = [row["labels_first"], row["labels_late"], by[OTHER], by[OWN]]
            rows.append([classes.split()[0], *size(row), *map(of_all_and_wrong, right), share(row["majority"])])
    return [
        "### What are the labels of rows that I know?",
        "",
        "Two sites may know the same people, and one of them their diagnosis. Whoever knows all inputs of a site knows "
        "H; then the first gradient is a set of equations for T, linear but for a few unknowns that the rule by which "
        "the first `A_t` is made takes care of. They give T up to the names of the classes, and as far as it is a "
        "combination of columns of H: all of it, if there are as many units as rows. No other message is needed, and "
        "no other attacker.",
        "",
        "Per cent of labels read, all / those that are wrong on purpose. Late is from the last gradient; then what is "
        "guessed right by a neighbour with its own model, by the site's own model, and by always naming the largest "
        "class. Names of classes are given away: one known label of each would do.",
        "",
        *table(
            ["classes", "rows", "units", "first message", "late", "neighbour's model", "own model", "largest class"],
            rows,
        ),
        "",
    ]


def model_section(result: Row) -> list[str]:
    two, both = result["figures"]["two classes"], views(result)
    least = min(value for row in two for value in row["model"])
    errors = [row["AA_error"] for row in both]
    return [
        "### What is the site's model?",
        "",
        "With one output or two classes, G has rank one and its rows are multiples of `A_t`: outputs of the site's "
        f"model on fresh rows correlate with what is worked out by at least {least:.4f}, in every round and for every "
        "size above, but for the sign. In general, where A has settled U'G = -mu2 A A', so that A is known but for a "
        f"rotation of the outputs (A A' to {min(errors):.0e} to {max(errors):.0e} after the last round). All that a "
        "copy of a model tells about its training data comes on top of what is measured here.",
        "",
    ]


def rows_section(result: Row) -> list[str]:
    body = []
    for row in result["figures"]["rows"]:
        view = row.get("view", "all that it hears")
        if "columns_known" in row:
            view += f", {row['columns_known']} columns known"
        body.append(
            [
                f"{row['data']}, {row['columns']} columns",
                *size(row),
                view,
                f"{row['rounds']} sums" if "sums" in view else str(row["rounds"]),
                *(str(row["near"][within]) for within in ("0.3", "0.01", "1e-06")),
                share(row["hits"]),
            ]
        )
    before = sum(row["before"] for row in result["figures"]["rows"])
    return [
        "### What are the rows?",
        "",
        "The hidden layer is public. So one can look for inputs whose hidden features, less the site's mean, are in "
        "the span: as many equations as directions outside of it, as many unknowns as columns. The mean is solved for "
        "along the way, by moving several candidates until they agree on it. Found of the site's rows, from "
        f"{result['settings']['starts']} starts (the neighbours' own rows; for the last row of the table, the known "
        "columns), to 0.3, 0.01 and a millionth of a standard deviation, root mean square over columns; and per cent "
        f"of the starts that ended within 0.01 of a row. Before the search {before} of all rows in the table had a "
        "start within 0.3.",
        "",
        *table(["data", "rows", "units", "seen", "rounds", "to 0.3", "to 0.01", "to 1e-6", "starts, %"], body),
        "",
        "A start leads to one row or to none, and who finds one knows it by the misfit; several lead to the same one. "
        "Where no row was found it is this search that failed: with more rows than units it has nothing to go by, with "
        "64 independent columns it did not find its way, which proves nothing about a better one. Real data has fewer "
        "degrees of freedom than columns, and knowing some of a person's columns gives away the others.",
        "",
    ]


def sums_section(result: Row) -> list[str]:
    rows = result["figures"]["sums"]
    body = [
        [
            str(row["classes"]),
            *size(row),
            str(row["bits"]),
            f"{row['sums']:.0f}",
            auc(row["auc"]),
            of_all_and_wrong(row["labels"]),
            f"{row['AA_error']:.0e}",
            f"{row['error']:.1f}",
        ]
        for row in rows
    ]
    known = [row["moments"] for row in rows if row["bits"] == 64 and row["moments"] is not None]
    return [
        "### Where sums are exchanged",
        "",
        '`exchange = "sums"` (variable projection) adds gradients up along a tree. What a leaf sends is its own '
        "gradient alone, at a U that all know, with `A_t` at its best. What an inner agent sends is that of all below "
        "it: its parent and its children together know its own part. On a star the hub is the parent of all; in a "
        "network of two each knows the other's part. The start adds the site's own weights times their transpose times "
        "a known block, and H'H times four known vectors and a number; energies, objectives and guesses of noise are "
        "added up beside them. "
        "A leaf of a star, as the hub sees it, start included:",
        "",
        *table(
            ["classes", "rows", "units", "bits", "sums", "AUC", "labels, %", "error of A A'", "test error, %"], body
        ),
        "",
        "There are fewer messages than with ADMM, and each says more. Coarse messages blur the span and hide no label: "
        "what rounding leaves out is told later. With two classes, differences of gradients also say what H'H makes of "
        f"as many vectors as there are sums: {share(min(known))} to {share(max(known))} % of its norm, in 64 bits.",
        "",
    ]


def defences_section(result: Row) -> list[str]:
    lines = [
        "### What helps, and what does not",
        "",
        "Two classes, ADMM on a ring, all that the site says and hears. Noise is normal, a share of U's root mean "
        "square in size, and fresh in every round; multipliers go by what was told. The better of first message and "
        "late ones (averaged over the second half of the rounds), labels as above.",
        "",
    ]
    for one in result["figures"]["alone"]:
        rows = [
            row for row in result["figures"]["defences"] if (row["rows"], row["units"]) == (one["rows"], one["units"])
        ]
        body = []
        for row in rows:
            best = max((row["labels_first"], row["labels_late"]), key=lambda labels: labels["all"])
            body.append([row["way"], auc(row["auc"]), of_all_and_wrong(best), f"{row['error']:.1f}"])
        lines += [
            f"{one['rows']} rows, {one['units']} units (alone, with the best of a few penalties, a site errs by "
            f"{one['error']:.1f} %):",
            "",
            *table(["", "AUC", "labels, %", "test error, %"], body),
            "",
        ]  # fmt: skip
    return [
        *lines,
        "- **Fewer rounds** make it harder to recognise rows, and cost nothing as long as the run is near its end. "
        "They do nothing for labels, which the first message tells; and with many classes ten rounds are enough for "
        "rows.",
        "- **Coarser numbers** do little: single precision hides the last digits of a row, half precision most of the "
        "span, neither a label.",
        "- **Noise** that costs the sites nothing hides rows from the test tried here, not labels: over the rounds it "
        "averages out. Noise that hides labels leaves models that are worse than a site's own.",
        "",
        "None of this is differential privacy, and no number here is a bound: these are the attacks that were tried, "
        "better ones may exist, and attackers who send U of their own making were not tried at all. Differential "
        "privacy would need a limit on how much one row can move what is sent (rows and labels clipped, so that the "
        "change of U_t has a known bound), noise in proportion to that limit, and an account of what all rounds "
        "together have used up, the agreed penalties and scales included. elmesh does none of this. Nor does it mask "
        "sums so that only the total can be read. FO-DMTL-ELM hides one number a round, the size of its step, and was "
        "not measured.",
        "",
    ]


def advice_section(result: Row) -> list[str]:
    two, ten = result["figures"]["two classes"], result["figures"]["ten classes"]
    price = " and ".join(
        f"{find(rows, rows=300, units=30)['test_error'][-1]:.1f} instead of "
        f"{find(rows, rows=300, units=100)['test_error'][-1]:.1f} % with {name}"
        for name, rows in (("two classes", two), ("ten", ten))
    )
    thrice, units = find(two, rows=300, units=100), MultiTaskELMClassifier().n_hidden
    return [
        "### What to do",
        "",
        "- **Good enough** where sites could show each other their data but not move or pool it, for reasons of size, "
        "custody or contract, or where single rows and labels are no secret. What is sent is no copy of the data, and "
        "nobody gets at it by accident.",
        "- **Not good enough** where a neighbour must not learn a row or a label even if it tries, and may try: health "
        "records among competitors, for instance. Treat what a neighbour receives as personal data if the rows are.",
        f"- **Fewer hidden units than rows, ten times fewer**: `n_hidden` at most a tenth of the smallest site's rows. "
        f"Fewer than rows is not enough: with three times as many rows as units AUC is {auc(max(thrice['auc']))} and "
        f"{share(thrice['labels_first']['wrong'])} % of the wrong labels are read. The price was an error of {price} "
        f"(300 rows, 30 units instead of 100). The default of {units} units wants {10 * units:,} rows a site.",
        "- **Choose neighbours**: the hub of a star sees all there is to see of every leaf, and in a complete graph "
        "everybody of everybody. On other graphs give each site at least one neighbour that would not tell the others "
        "what it hears. That does not protect from the first message, nor small networks: count the rows of all "
        "other sites together against the units.",
        "- **Stop early**: as few rounds as the error needs.",
        '- **Do not take `exchange = "sums"` or few `message_bits` for protection**; they save rounds and bytes.',
        "- Certificates and encryption keep everybody else out. All of the above is about those who are let in.",
    ]


def section() -> str:
    result = load(RESULTS / "privacy.json")
    parts = (
        opening_section, setting_section, membership_section, labels_section, model_section, rows_section,
        sums_section, defences_section, advice_section,
    )  # fmt: skip
    return "\n".join(line for part in parts for line in part(result))


def filled(text: str) -> str:
    """Put the section between its markers."""
    found = re.compile(r"(<!-- privacy -->\n).*?(<!-- /privacy -->)", re.DOTALL)
    if not found.search(text):
        raise SystemExit(f"{PAGE.name} has no markers <!-- privacy --> and <!-- /privacy -->.")
    return found.sub(lambda match: match[1] + section() + "\n" + match[2], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.name} is up to date.", file=sys.stderr)
