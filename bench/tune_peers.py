#!/usr/bin/env python3
"""Optuna's TPE and random search beside `plimsoll tune solve`: same settings, same distributions, same objective.

Two tiers in sequence, 20 values each (400 configurations), five epochs. A trial of the peers names a configuration for each
epoch and is told the mix's worth, with a missed bound as a penalty, from the very distributions the solver has. TPE is asked in two
ways: for one of the 400 configurations an epoch, which is the space that the solver has, and for two ordered values an epoch, which
tells it more. The first budget is as many trials as there are configurations, the second more than twice that. Optima that are one
configuration could be found by listing all within the first; the task under a bound has none. Prints, for each task: the worth
found, the trials or programs, the seconds.
"""
import csv, json, math, random, subprocess, sys, tempfile, time
from pathlib import Path
import numpy as np
import optuna

VALUES, DRAWS, EPOCHS = 20, 2000, 5
BUDGETS, SEEDS = [400, 1000], 3
TASKS = [("mean", None), ("p50", None), ("p99", 9.0)]


def tiers(rng):
    """Each tier's times by value: more hits, a longer tail."""
    out = []
    for i in range(2):
        tier = []
        for v in range(VALUES):
            part = v / (VALUES - 1)
            scale = (4 + 8 * i) * (0.9 + 0.2 * rng.random())
            spread = 0.3 + 1.1 * part
            tier.append([0.1 * scale * rng.random() if rng.random() < 0.1 + 0.7 * part else scale * math.exp(spread * rng.gauss(0, 1)) for _ in range(DRAWS)])
        out.append(tier)
    return out


def tune_file(folder, parts):
    values = json.dumps([str(v) for v in range(VALUES)])
    text = "".join(f'[[parameter]]\nname = "{n}"\nvalues = {values}\nmoves = ["{n}"]\n' for n in ("a", "b"))
    text += '[graph]\nroot = "r"\ncomponents = ["a", "b"]\n[graph.node]\nr = { sequence = ["a", "b"] }\n'
    (folder / "t.toml").write_text(text + f"[period]\nepochs = {EPOCHS}\n")
    with open(folder / "p.csv", "w", newline="\n") as f:
        w = csv.writer(f, lineterminator="\n")
        w.writerow(["request", "node", "value", "a", "b"])
        for i, name in enumerate("ab"):
            for v, times in enumerate(parts[i]):
                for n, t in enumerate(times):
                    w.writerow([n, name, t, v if i == 0 else 0, v if i == 1 else 0])


def worth(samples, goal, bound):
    at = lambda p: float(np.quantile(samples, p, method="inverted_cdf"))
    value = float(samples.mean()) if goal == "mean" else at(int(goal[1:]) / 100)
    missed = max(0.0, at(0.5) / bound - 1) if bound else 0.0
    return value * (1 + 10 * missed), missed


def configuration(trial, epoch):
    """One of all configurations, in no order."""
    return divmod(trial.suggest_categorical(f"c{epoch}", list(range(VALUES * VALUES))), VALUES)


def two_values(trial, epoch):
    """A configuration as two ordered values."""
    return trial.suggest_int(f"a{epoch}", 0, VALUES - 1), trial.suggest_int(f"b{epoch}", 0, VALUES - 1)


def peer(sampler, ask, trials):
    """The best mix that a sampler finds within a budget, for each seed."""
    found, missed, began = [], 0, time.time()
    for seed in range(1, SEEDS + 1):
        study = optuna.create_study(sampler=sampler(seed=seed))

        def told(trial):
            value, beyond = ask(trial)
            trial.set_user_attr("missed", beyond)
            return value

        study.optimize(told, n_trials=trials)
        found.append(study.best_value)
        missed += study.best_trial.user_attrs["missed"] > 0
    seconds = (time.time() - began) / SEEDS
    spread = f"({min(found):.3f} to {max(found):.3f} over {SEEDS} seeds)"
    return f"{np.median(found):9.3f} ms  {spread}  bound missed by {missed} of them  {trials} trials  {seconds:.2f} s"


def main():
    plimsoll = sys.argv[1]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng = random.Random(1)
    parts = tiers(rng)
    shuffle = np.random.default_rng(1)
    # A configuration's requests: sums of independent draws, the same for all trials.
    b_order = [shuffle.permutation(DRAWS) for _ in range(VALUES)]
    sums = {(a, b): np.array(parts[0][a]) + np.array(parts[1][b])[b_order[b]] for a in range(VALUES) for b in range(VALUES)}
    mixed = lambda mix: np.concatenate([sums[c] for c in mix])
    with tempfile.TemporaryDirectory() as d:
        folder = Path(d)
        tune_file(folder, parts)
        for goal, bound in TASKS:
            args = [plimsoll, "tune", "solve", str(folder / "t.toml"), "--profile", str(folder / "p.csv"), "--minimise", goal, "--json"]
            args += ["--bound", f"p50 <= {bound}ms"] if bound else []
            t = time.time()
            ours = json.loads(subprocess.run(args, check=True, capture_output=True, text=True).stdout)
            seconds = time.time() - t
            mix = [(int(p["setting"]["a"]), int(p["setting"]["b"])) for p in ours["parts"] for _ in range(round(p["share"] * EPOCHS))]
            value, missed = worth(mixed(mix), goal, bound)
            name = f"min {goal}" + (f", p50 <= {bound} ms" if bound else "")
            print(f"{name}\n  {'plimsoll':<35}  {value:9.3f} ms  bound missed by {missed:.3f}  proven {ours['proven']}  {seconds:.2f} s with start, reading and composing")
            tpe, at_random = optuna.samplers.TPESampler, optuna.samplers.RandomSampler
            peers = [("Optuna TPE, a configuration an epoch", tpe, configuration), ("Optuna TPE, two values an epoch", tpe, two_values)]
            for kind, sampler, choose in [*peers, ("random search", at_random, configuration)]:
                ask = lambda trial: worth(mixed([choose(trial, e) for e in range(EPOCHS)]), goal, bound)
                for trials in BUDGETS:
                    print(f"  {kind:<35}  {peer(sampler, ask, trials)}")


main()
