"""Write docs/attacks.md, and the summary in docs/security.md, from the benchmarks `totals`, `basis` and `masks`."""

from __future__ import annotations

import math
import sys
from typing import Any

from pages import RESULTS, ROOT, fill, load, missed_goals, table

PAGE, FIGURE = ROOT / "docs" / "attacks.md", "../benchmarks/results/basis.png"
SECURITY = ROOT / "docs" / "security.md"
OWN, OTHER = "site's own model", "neighbour's model"
Row = dict[str, Any]

#: Hidden units of a network file, by default.
NETWORK_UNITS = 300


def auc(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def share(value: float) -> str:
    return f"{100 * value:.0f}"


def digits_of(error: float) -> int:
    """Return the number of correct digits for a relative error."""
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
        "A site never sends rows, labels or `A_t`; it sends `U_t` every round. **That does not protect rows and labels "
        "from a neighbour that tries to learn them.** `U_t` is computed by a public rule, in which everything but the "
        "site's own gradient is public or has been sent. So an attacker can compute the gradient:",
        "",
        "    G = H'(H U_t A_t - T) A_t'        H: the site's hidden features, T: its targets, both centred",
        "",
        f"The measurements below are for {settings['sites']} sites, each number a mean over {settings['draws']} draws "
        "(reconstruction of rows: one draw), and for passive attackers, who follow the protocol:",
        "",
        "- An attacker that sees all messages to and from a site knows the gradient of every round to "
        f"{digits_of(exact)} digits. These are the neighbours of a site together: two on a ring, the hub of a star "
        "alone for every leaf, and every agent in a complete graph.",
        f"- One neighbour alone knows the first gradient to {digits_of(first)} digits, because all agents start from "
        "the same U. Later it must guess the messages of the others, and its error is "
        f"{share(min(later))} to {share(max(later))} %.",
        "- If a site has fewer rows than hidden units, an attacker can distinguish its rows from others (AUC "
        f"{auc(few['auc'][-1])} with {few['rows']} rows and {few['units']} units) and reconstruct them: "
        f"{found['near']['0.01']} of {found['rows']} images to a hundredth of a standard deviation, after "
        f"{found['rounds']} rounds. "
        f"An attacker that knows the inputs learns {share(few['labels_first']['all'])} % of the labels from the first "
        "message.",
        "- With ten times as many rows as hidden units little of this works: the AUC is "
        f"{auc(max(many['auc']))}, and {share(many['labels_first']['all'])} % of the labels are found, where the "
        f"site's own model predicts {share(many['labels_by'][OWN]['all'])} % correctly.",
        "- An attacker that sees all messages also learns `A_t`, up to a rotation.",
        "",
        f"![AUC by number of rounds, and reconstructed digits]({FIGURE})",
        "",
        "The figure shows the first digits of the site, and below each the nearest digit that the search found.",
        "",
    ]


def setting_section(result: Row) -> list[str]:
    columns = result["settings"]["columns"]
    return [
        "### The setting",
        "",
        "Digits of scikit-learn, 64 pixels, distributed over sites. The classes are the ten digits, or whether a digit "
        f"is less than five. One label in {1 / result['settings']['wrong']:.0f} is wrong on purpose: no model can "
        "predict these labels, so an attacker that finds them has reconstructed them. The solver is `DMTLELM` on a "
        f'ring with `init="seed"`; U has {columns["2"]} columns ({columns["10"]} for ten classes), and the '
        "penalties and rho are the automatic ones, rounded to two digits. Attackers know the hidden layer, all "
        "parameters and the graph, as every agent does. Where an attacker has to choose something (the number of "
        "directions, the level of noise), the best of a few choices in hindsight is used. The AUC is the probability "
        "that a row of the site gets a better score than a new row: 0.5 is guessing. With random directions the same "
        f"choice in hindsight gives at most {auc(max(row['auc_luck'] for row in views(result)))}. "
        "`python -m benchmarks basis` measures all of this in a few minutes.",
        "",
    ]


def membership_section(result: Row) -> list[str]:
    rounds = result["settings"]["rounds"]
    lines = [
        "### Membership: is a row one of the site's?",
        "",
        "Every column of G is a linear combination of the site's centred rows of H. If there are fewer rows than "
        "units, the gradients of enough rounds span all of these rows, and a candidate outside the span is not among "
        "them. The attacker does not know the site's mean and uses that of its own rows.",
        "",
    ]
    for classes in ("two classes", "ten classes"):
        lines += [
            f"AUC for {classes}. Numbered columns: an attacker that sees all messages to and from the site, after so "
            "many rounds. Then, after the last round: one neighbour; the last U alone; and an attacker that knows H'H "
            "and the mean, where there are enough rows for that.",
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
        "Per round the span grows by as many directions as the targets have (one for two classes, nine for ten) if U "
        f"has that many columns, and more slowly near convergence: {grown['rank'][2]:.0f} directions after "
        f"{rounds[2]} rounds and {grown['rank'][-1]:.0f} of {grown['rank_there_is']:.0f} after {rounds[-1]} with "
        f"{grown['rows']} rows, {grown['units']} units and two classes; {ten['rank'][2]:.0f} of "
        f"{ten['rank_there_is']:.0f} after {rounds[2]} with {ten['rows']} rows and ten classes. The directions found "
        f"are outside the true span by at most {max(grown['outside']):.0e} (sine of the largest angle).",
        "",
        "With more rows than units the span is the whole space. In early rounds it still contains information, because "
        "the dominant directions of a site's rows come first. One neighbour sees the rows of all other sites mixed, "
        "including sites that it does not know. As long as these rows are fewer than the units "
        f"({result['settings']['sites'] - 1} times {union['rows'] - 1} directions and {union['units']} units) this is "
        "as good as all messages, but it does not show which site a row belongs to.",
        "",
        f"The effect of rank and classes, with {first['rows']} rows and {first['units']} units: directions found and "
        "AUC after " + ", ".join(map(str, some)) + " rounds.",
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
        "### Labels of known rows",
        "",
        "Two sites may know the same people, and one of them their diagnosis. An attacker that knows all inputs of a "
        "site knows H. Then the first gradient gives equations for T, which are linear except for a few unknowns that "
        "follow from the rule for the first `A_t`. They determine T up to the names of the classes, as far as T is a "
        "combination of columns of H: completely, if there are at least as many units as rows. One neighbour and one "
        "message are enough.",
        "",
        "Per cent of labels found: all / those that are wrong on purpose. Late: from the last gradient. Then the per "
        "cent predicted correctly by a neighbour's model, by the site's own model, and by always predicting the "
        "largest class. The names of the classes are given to the attacker; one known label per class would suffice.",
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
        "### The site's model",
        "",
        "With one output or two classes, G has rank one and its rows are multiples of `A_t`. The outputs of the "
        f"reconstructed model on new rows have a correlation of at least {least:.4f} with those of the site's model, "
        "in every round and for every size above, up to the sign. In general, U'G = -mu2 A A' after convergence, so A "
        f"is known up to a rotation of the outputs (A A' with an error of {min(errors):.0e} to {max(errors):.0e} after "
        "the last round). What a copy of the model reveals about its training data is not included in the "
        "measurements here.",
        "",
    ]


def rows_section(result: Row) -> list[str]:
    body = []
    for row in result["figures"]["rows"]:
        view = row.get("view", "all messages")
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
        "### Reconstruction of rows",
        "",
        "The hidden layer is public. So an attacker can search for inputs whose hidden features, minus the site's "
        "mean, are in the span: there are as many equations as directions outside the span, and as many unknowns as "
        "columns. The mean is found at the same time, as the one on which several candidates agree. The table shows "
        f"how many of the site's rows were found from {result['settings']['starts']} starting points (rows of the "
        "neighbours; in the last row of the table, the known columns), to 0.3, 0.01 and 1e-6 standard deviations (root "
        "mean square over columns), and the per cent of starting points that ended within 0.01 of a row. Before the "
        f"search, {before} of all rows in the table had a starting point within 0.3.",
        "",
        *table(["data", "rows", "units", "view", "rounds", "to 0.3", "to 0.01", "to 1e-6", "starts, %"], body),
        "",
        "A starting point leads to one row or to none; the misfit shows which. Several may lead to the same row. Where "
        "no row was found, this search failed, which does not prove that another one would: with more rows than units "
        "there are no equations, and with 64 independent columns the search did not converge. Real data have fewer "
        "degrees of freedom than columns, and known columns of a person help to find the others.",
        "",
    ]


def defences_section(result: Row) -> list[str]:
    lines = [
        "### Defences",
        "",
        "Two classes, DMTL-ELM on a ring, an attacker that sees all messages to and from the site. Noise is normal, "
        "independent in every round, with a standard deviation relative to the root mean square of U; multipliers are "
        "computed from the values that were sent. Labels as above, from the first message or from late ones (averaged "
        "over the second half of the rounds), whichever is better.",
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
            f"{one['rows']} rows, {one['units']} units (the test error of a site alone, with the best of a few "
            f"penalties, is {one['error']:.1f} %):",
            "",
            *table(["", "AUC", "labels, %", "test error, %"], body),
            "",
        ]  # fmt: skip
    return [
        *lines,
        "- **Fewer rounds** make membership harder to detect, and do not raise the error as long as the run is near "
        "convergence. They do not protect labels, which the first message reveals; and with many classes ten rounds "
        "are enough to reconstruct rows.",
        "- **Lower precision** has little effect: single precision hides the last digits of a row, half precision most "
        "of the span, and neither hides a label.",
        "- **Noise** that does not raise the error hides rows from the test used here, but not labels, because it "
        "averages out over the rounds. Noise that hides labels gives models that are worse than those of a site alone.",
        "",
        "None of this is differential privacy, and no number here is a bound: these are the attacks that were tried, "
        "and better ones may exist. Active attackers, who send a modified U, were not tried. FO-DMTL-ELM hides one "
        "number per round, the length of its step, and was not measured.",
        "",
    ]


def advice_section(result: Row) -> list[str]:
    two, ten = result["figures"]["two classes"], result["figures"]["ten classes"]
    price = " and ".join(
        f"{find(rows, rows=300, units=30)['test_error'][-1]:.1f} instead of "
        f"{find(rows, rows=300, units=100)['test_error'][-1]:.1f} % with {name}"
        for name, rows in (("two classes", two), ("ten", ten))
    )
    thrice, units = find(two, rows=300, units=100), NETWORK_UNITS
    return [
        "### Recommendations",
        "",
        '- **Use masked sums** (`exchange = "sums"`, the default) unless the method of the paper itself is wanted.',
        "- **Sufficient** if sites could show each other their data but cannot move or pool them, for reasons of size, "
        "custody or contract, or if single rows and labels are not secret. The messages are not a copy of the data, "
        "and it takes an attack to obtain data from them.",
        "- **Not sufficient** if a neighbour may attack and must not learn a row or a label: for instance health "
        "records among competitors. Treat the messages as personal data if the rows are personal data.",
        "- **Use at least ten times as many rows as hidden units**: `n_hidden` at most a tenth of the rows of the "
        "smallest site. Fewer units than rows are not enough: with three times as many rows as units the AUC is "
        f"{auc(max(thrice['auc']))} and {share(thrice['labels_first']['wrong'])} % of the wrong labels are found. The "
        f"cost was an error of {price} (300 rows, 30 units instead of 100). The default of {units} units needs "
        f"{10 * units:,} rows per site.",
        "- **Choose the graph**: the hub of a star sees all messages of every leaf, and in a complete graph every "
        "agent sees all messages of every other. On other graphs give each site at least one neighbour that does not "
        "share its messages with the others. This protects neither the first message nor small networks: compare the "
        "number of rows of all other sites together with the number of units.",
        "- **Stop early**: use as few rounds as the error allows.",
        "- Certificates and encryption protect from everyone else. This section is about the participants.",
    ]


# Masked sums and differential privacy.


def setting(row: Row) -> list[str]:
    return [str(row["sites"]), str(row["colluders"]), str(row["rows"])]


def masked_section(result: Row) -> list[str]:
    figures, settings = result["figures"], result["settings"]
    limited, unlimited = figures["masked"], figures["masked, all features"]
    body = [
        [
            *setting(row), f"{row['features']:.0f}", auc(row["auc"]), auc(row["auc_site"]), auc(row["auc_own_model"]),
            of_all_and_wrong(row["labels"]), of_all_and_wrong(row["labels_own_model"]),
        ]
        for row in limited
    ]  # fmt: skip
    whole = [
        [*setting(row), f"{row['features']:.0f}", f"{row['rank']:.0f}", auc(row["auc"]), auc(row["auc_site"]),
         of_all_and_wrong(row["labels"])]
        for row in unlimited
    ]  # fmt: skip
    return [
        "## Masked sums",
        "",
        "Attackers are some of the sites. They see all totals of a run and subtract their own parts; what is left is "
        "the total over the other sites. The data are digits of scikit-learn, 64 pixels; the target is whether a digit "
        f"is at least five, and one label in {1 / settings['wrong']:.0f} is wrong on purpose, so that no model can "
        f"predict it. Every number is a mean over {settings['draws']} draws; of several scores and totals the best in "
        "hindsight is shown, so that about 0.53 is luck. `python -m benchmarks totals` measures it.",
        "",
        "- *AUC*: is a row among those of the honest sites? The best of three scores: its leverage in the total, its "
        "distance from the span of the total, and how well the model that follows from the total predicts its label.",
        "- *AUC, which site*: the same scores, for rows of the site under attack against rows of other honest sites.",
        "- *Labels*: the attacker knows the inputs of all rows of the site, and computes labels from the total: per "
        "cent found of all / of those wrong on purpose.",
        "- *Own model*: what the site's own model, if it were published, would give away in the same way.",
        "",
        *table(
            ["sites", "colluders", "rows per site", "features", "AUC", "AUC, which site", "AUC, own model",
             "labels, %", "labels by own model, %"],
            body,
        ),
        "",
        "With at least five sites, of which at most a third collude, no row can be attributed to its site, and no more "
        "labels are found than the site's own model predicts. With few honest rows it is visible that a row belongs to "
        "one of the honest sites.",
        "",
        "### Why the number of features is limited",
        "",
        f"Networks sum totals of at most one feature per {settings['rows_per_feature']:.0f} rows "
        "(`rows_per_feature`), counted without the largest third of the sites, because these may be colluders who "
        "claim any number of rows. The same attacks without that limit:",
        "",
        *table(
            ["sites", "colluders", "rows per site", "features", "rank of the total", "AUC", "AUC, which site",
             "labels, %"],
            whole,
        ),
        "",
        "With more features than honest rows a total determines a model that interpolates: it gives the label of every "
        "row whose inputs are known. Masks do not help against that, because it is in the total itself.",
        "",
    ]  # fmt: skip


def private_section(result: Row) -> list[str]:
    settings = result["settings"]
    body = [
        [
            *setting(row), auc(row["auc"]), auc(row["auc_site"]), of_all_and_wrong(row["labels"]),
            f"{row['auc_all_else_known']:.3f}", f"{row['auc_label_all_else_known']:.3f}",
        ]
        for row in result["figures"]["private"]
    ]  # fmt: skip
    return [
        "## Differential privacy",
        "",
        f"The same sites with epsilon {settings['epsilon']:g}, delta {settings['delta']:g} and noise against a third "
        "of the sites as colluders. The last two columns are for an attacker who knows every other row and label of "
        "all sites: was it this row or that one; is this label right or wrong? No attack can do better than these.",
        "",
        *table(
            ["sites", "colluders", "rows per site", "AUC", "AUC, which site", "labels, %", "row, all else known",
             "label, all else known"],
            body,
        ),
        "",
        "Rows with more colluders than a third of the sites show what is left of the promise then.",
        "",
    ]  # fmt: skip


def apart_section(result: Row) -> list[str]:
    figures = result["figures"]
    grams = [
        [str(row["honest"]), str(row["totals"]), row["v"], f"{row['found']} of {row['draws']}", f"{row['error']:.1g}",
         f"{row['guess']:.1g}"]
        for row in figures["Gram matrices"]
    ]  # fmt: skip
    steered = [
        [str(row["honest"]), str(row["features"]), f"{row['rounds']:,}", f"{row['worst_cosine']:.4f}"]
        for row in figures["steered"]
    ]
    row, site = figures["differences"]
    weighed, alike = figures["weights"]
    features = figures["Gram matrices"][0]["features"]
    return [
        "## Totals taken apart",
        "",
        "A single total cannot be taken apart. Several totals of the same sites, at different points of a known "
        "function, are equations for what the sites have.",
        "",
        "**Gram matrices from totals at several v.** A fit releases three totals of whitened Gram matrices, at the "
        "private variances of its three rounds. From these an attacker can try to fit the Gram matrix of every honest "
        f"site ({features} features here); an attacker that sends what it pleases can also choose the variances. Found "
        "means to one per cent; a guess is that all sites are alike.",
        "",
        *table(["honest sites", "totals", "variances", "found", "error", "error of a guess"], grams),
        "",
        "The three totals of a fit separate two honest sites, and not three or more. Thirty totals would separate "
        "nine: that is why a fit has three (EM, [model.md](model.md)), and why a site releases at most nine of the "
        "same rows over all runs. Networks should have at least three sites more than may collude.",
        "",
        "**Correlations from totals of gradients at chosen U.** With a shared part, every round releases the total of "
        "the sites' gradients at a U that follows from the totals before. An attacker that sends what it pleases "
        "chooses it. From the first and the third order in U it obtains the correlations `Phi_t'R_t` of every single "
        "site with what the common part leaves, up to their sign (worst cosine of all sites with the true ones, median "
        "over draws):",
        "",
        *table(["honest sites", "features", "rounds", "cosine"], steered),
        "",
        "So networks have no shared part unless `--rank` asks for one, which is then said on screen. Without one a fit "
        "has three matrix totals, a few dozen times a few numbers, and one block.",
        "",
        "**Weights of sites.** Where sites with more noise weigh less, as in a fit of one process, an attacker that "
        "sends what it pleases can steer W until all honest sites but one weigh nothing: of "
        f"{weighed['honest']} honest sites, the second matrix total is then that of one site, to "
        f"{100 * weighed['error']:.1g} %. In networks all sites weigh the same (`weigh_sites`), and the same attack "
        f"obtains a total that is {100 * alike['error']:.0f} % away from that site's.",
        "",
        "**Differences between runs.** If one site has one row more in a second run, the difference of the totals "
        f"points to that row: sorted by the direction of the difference, it is in the median number {row['rank']:.0f} "
        f"of {row['candidates']:,} candidates. If one site is missing in the second run, the difference is that site's "
        f"whole term (relative error {site['error']:.0e}). Agents therefore refuse a second run with other rows, or "
        "with a few sites more or less, unless they are told to accept it (`--release-again`), and a run ends if a "
        "site is lost after its first total.",
        "",
    ]


def totals_section() -> str:
    result = load(RESULTS / "totals.json")
    parts = masked_section, private_section, apart_section
    lines = [line for part in parts for line in part(result)]
    return "\n".join([*lines, "## Goals not reached", "", *missed_goals(result)])


def summary_section() -> str:
    """Return the short table of docs/security.md."""
    totals, basis, masks = (load(RESULTS / f"{name}.json") for name in ("totals", "basis", "masks"))
    few = find(basis["figures"]["two classes"], rows=50, units=300)
    rebuilt = find(basis["figures"]["rows"], data="digits, ten classes", rows=50, rounds=10)
    masked = find(totals["figures"]["masked"], sites=5, colluders=1, rows=50)
    private = find(totals["figures"]["private"], sites=5, colluders=1, rows=50)
    cost = masks["figures"]["sums"][-1]
    body = [
        [
            '`exchange = "basis"`, one neighbour', f"{share(few['labels_first']['wrong'])} %",
            f"{rebuilt['near']['0.01']} of {rebuilt['rows']} (two neighbours)",
            auc(few["auc"][-1]), auc(few["auc"][-1]),
        ],
        [
            "masked sums, the default", f"{share(masked['labels']['wrong'])} %", "none", auc(masked["auc"]),
            auc(masked["auc_site"]),
        ],
        [
            f"masked sums with epsilon {totals['settings']['epsilon']:g}", f"{share(private['labels']['wrong'])} %",
            "none", auc(private["auc"]), auc(private["auc_site"]),
        ],
        [
            "the site's own model, if it were published", f"{share(masked['labels_own_model']['wrong'])} %", "none",
            "", auc(masked["auc_own_model"]),
        ],
    ]  # fmt: skip
    return "\n".join(
        [
            *table(
                ["what others see", "wrong labels of known rows found", "rows reconstructed",
                 "AUC: a row of an honest site?", "AUC: of this site?"],
                body,
            ),
            "",
            "Five sites with 50 rows each, one attacker unless stated otherwise. Labels that are wrong on purpose "
            "cannot be predicted, only found; a coin finds 50 % of them, and a good model fewer. An AUC of 0.5 is "
            "guessing. All settings, and what does get through, are in [attacks.md](attacks.md).",
            "",
            f"A masked sum of {cost['features']} features over {cost['agents']} sites on one machine takes "
            f"{cost['ratio']['masked']:.2f} times as long as one without masks; with all that a run adds, each term "
            f"being on disk and in the log before it is sent, {cost['ratio']['released']:.2f} times (the sites share "
            "one disk here).",
        ]
    )  # fmt: skip


def section() -> str:
    result = load(RESULTS / "basis.json")
    parts = (
        opening_section, setting_section, membership_section, labels_section, model_section, rows_section,
        defences_section, advice_section,
    )  # fmt: skip
    return "\n".join(line for part in parts for line in part(result))


def filled(text: str) -> str:
    """Return docs/attacks.md with the sections written from the committed results."""
    return fill(fill(text, "totals", totals_section()), "basis", section())


def filled_security(text: str) -> str:
    """Return docs/security.md with its summary."""
    return fill(text, "attacks", summary_section())


if __name__ == "__main__":
    for page, write in ((PAGE, filled), (SECURITY, filled_security)):
        page.write_text(write(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(f"{page.name} is up to date.", file=sys.stderr)
