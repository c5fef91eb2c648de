//! Ratios between settings: of runs that are sound, marked where the machine was not free, or with the reason for which
//! there is none.

use serde::Serialize;

use crate::conditions::caption;
use crate::disturbance::{Disturbance, State};
use crate::report::{Check, ENOUGH, Group, Report, Run, by_setting, describe, median, varying};
use crate::table::Cell;

/// A ratio, or the reason for which there is none.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The ratio, if there is one.
    pub value: Option<f64>,
    /// The reason for which there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<&'static str>,
    /// The state of the machine in the runs of both sides: only those of a free one give verdicts.
    pub machine: State,
}

/// The reason for which a setting's runs have no part in a ratio; none if they have.
fn unsound(group: &[&Run]) -> Option<&'static str> {
    let has_failed = |name: &str| group.iter().any(|run| run.checks.get(name) == Some(&Check::Fail));
    if group.is_empty() {
        Some("not measured")
    } else if group.iter().any(|run| run.committed == 0) {
        Some("nothing committed")
    } else if has_failed(ENOUGH) {
        Some("too few commits")
    } else if group.iter().any(|run| run.checks.is_empty()) {
        Some("nothing checked")
    } else if !has_passed(group) {
        Some("checks failed")
    } else {
        None
    }
}

/// True if every run of a setting passed all of its checks.
pub fn has_passed(group: &[&Run]) -> bool {
    group.iter().all(|run| run.passed())
}

/// The runs of a setting that had the machine to themselves, or all of them if none had.
pub fn free<'a>(group: &[&'a Run]) -> Vec<&'a Run> {
    let free: Vec<&Run> = group.iter().copied().filter(|run| run.disturbance.is_free()).collect();
    if free.is_empty() { group.to_vec() } else { free }
}

/// The disturbance of a setting, of the runs that count.
pub fn disturbance(group: &[&Run]) -> Disturbance {
    Disturbance::worst(free(group).iter().map(|run| &run.disturbance))
}

impl Ratio {
    /// The ratio of a setting to another, or to something else that was measured beside it.
    pub fn of(group: &[&Run], base: Option<&[&Run]>, value: impl FnOnce() -> Option<f64>) -> Ratio {
        let why = unsound(group).or_else(|| {
            let why = unsound(base?)?;
            Some(if why == "nothing committed" {
                "nothing committed by the other"
            } else {
                "the other is unsound"
            })
        });
        let value =
            if why.is_none() { value().filter(|value| value.is_finite() && *value > 0.0) } else { None };
        let machine = disturbance(group).state.max(base.map_or(State::Free, |base| disturbance(base).state));
        Ratio { value, why: why.or_else(|| value.is_none().then_some("not measured")), machine }
    }

    /// The ratio as a cell: `-` with the reason if there is none, and with a mark if the machine was not free.
    pub fn cell(&self, show: fn(f64) -> String) -> Cell {
        match self.value {
            None => Cell::number("-").beside(self.why.unwrap_or_default()),
            Some(value) => Cell::number(show(value)).beside(mark(self.machine)),
        }
    }
}

/// Stands behind a figure of a machine that was not free.
pub fn mark(machine: State) -> &'static str {
    match machine {
        State::Free => "",
        State::Unknown => "machine unknown",
        State::Disturbed => "disturbed",
    }
}

/// The ratios of a setting.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SettingRatios {
    /// The engine.
    pub engine: String,
    /// The knobs that differ from setting to setting.
    pub setting: String,
    /// Throughput over that of the first setting.
    pub to_first: Ratio,
    /// Throughput over plain accesses to the same records, of the same repetitions.
    pub of_ceiling: Ratio,
}

/// The share of the ceiling that a setting reaches.
pub fn of_ceiling(group: &[&Run]) -> Ratio {
    let counted = free(group);
    let shares: Vec<f64> = counted.iter().filter_map(|run| run.share_of_ceiling).collect();
    let ratio = Ratio::of(group, None, || (!shares.is_empty()).then(|| median(shares)));
    let ceiling = counted.iter().filter_map(|run| run.ceiling_machine).max();
    Ratio { machine: ratio.machine.max(ceiling.unwrap_or_default()), ..ratio }
}

/// The throughput of a setting over that of another.
pub fn to_first(group: &[&Run], first: &[&Run]) -> Ratio {
    let rate = |group: &[&Run]| median(free(group).iter().map(|run| run.txn_per_s));
    Ratio::of(group, Some(first), || Some(rate(group) / rate(first)))
}

/// A report as it is written: with its ratios, and the conditions of all of its runs.
#[derive(Debug, Serialize)]
pub struct Written<'a> {
    #[serde(flatten)]
    report: &'a Report,
    /// The caption.
    conditions: String,
    /// The ratios of every setting that has clients.
    ratios: Vec<SettingRatios>,
}

impl<'a> Written<'a> {
    /// The report with what follows from it.
    pub fn of(report: &'a Report) -> Written<'a> {
        let groups = by_setting(&report.runs);
        let knobs = varying(&groups);
        let asked: Vec<&Group<'_>> = groups.iter().filter(|group| group[0].clients > 0).collect();
        let ratios = asked.iter().map(|group| SettingRatios {
            engine: group[0].engine.clone(),
            setting: describe(group[0], &knobs),
            to_first: to_first(group, asked[0]),
            of_ceiling: of_ceiling(group),
        });
        Written { report, conditions: caption(&report.runs), ratios: ratios.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing::run;
    use crate::report::{runs_table, whole};

    fn disturbed(run: Run) -> Run {
        let disturbance = Disturbance {
            state: State::Disturbed,
            others_cores: Some(0.8),
            stolen_cores: Some(0.0),
            why: Some("others used 0.80 cores".to_owned()),
        };
        Run { disturbance, ..run }
    }

    fn without_commits(run: Run) -> Run {
        let mut checks = run.checks.clone();
        checks.insert(ENOUGH, Check::Fail);
        Run { committed: 0, txn_per_s: 0.0, checks, ..run }
    }

    #[test]
    fn there_is_no_ratio_without_a_commit_on_either_side() {
        let (good, none) = (run("a", 1, 100.0, true), without_commits(run("b", 1, 1.0, true)));
        assert_eq!(to_first(&[&good], &[&good]).value, Some(1.0));
        for (group, first, why) in [
            (&none, &good, "nothing committed"),
            (&good, &none, "nothing committed by the other"),
            (&run("c", 1, 5.0, false), &good, "checks failed"),
            (&good, &run("c", 1, 5.0, false), "the other is unsound"),
            (&Run { checks: Default::default(), ..good.clone() }, &good, "nothing checked"),
        ] {
            let ratio = to_first(&[group], &[first]);
            assert_eq!((ratio.value, ratio.why), (None, Some(why)));
            assert_eq!(ratio.cell(whole), Cell::number("-").beside(why));
        }
        assert_eq!(of_ceiling(&[&good]).why, Some("not measured"));
        let beside = |machine| {
            let (share_of_ceiling, ceiling_machine) = (Some(0.5), Some(machine));
            of_ceiling(&[&Run { share_of_ceiling, ceiling_machine, ..good.clone() }]).machine
        };
        assert_eq!([State::Free, State::Disturbed].map(beside), [State::Free, State::Disturbed]);
    }

    #[test]
    fn a_ratio_of_a_disturbed_run_is_marked_and_a_free_repetition_counts_alone() {
        let (free, busy) = (run("a", 1, 100.0, true), disturbed(run("a", 2, 10.0, true)));
        let ratio = to_first(&[&busy], &[&free]);
        assert_eq!((ratio.value, ratio.machine), (Some(0.1), State::Disturbed));
        assert_eq!(ratio.cell(|value| value.to_string()), Cell::number("0.1").beside("disturbed"));
        assert_eq!(to_first(&[&free], &[&busy]).machine, State::Disturbed);
        let ratio = to_first(&[&free, &busy], &[&free]);
        assert_eq!((ratio.value, ratio.machine), (Some(1.0), State::Free));
        let unknown = Run { disturbance: Disturbance::default(), ..free.clone() };
        assert_eq!(to_first(&[&unknown], &[&free]).cell(whole), Cell::number("1").beside("machine unknown"));
    }

    #[test]
    fn the_table_says_what_each_ratio_is_worth() {
        let runs = [
            run("a", 1, 100.0, true),
            disturbed(run("b", 1, 50.0, true)),
            without_commits(run("c", 1, 1.0, true)),
        ];
        insta::assert_snapshot!(runs_table("", &runs, whole).to_string());
    }

    #[test]
    fn the_json_has_null_and_the_reason_where_there_is_no_ratio() {
        let report = Report {
            runs: vec![run("a", 1, 100.0, true), without_commits(disturbed(run("b", 1, 1.0, true)))],
            ..Report::new()
        };
        let json = serde_json::to_value(Written::of(&report)).unwrap();
        insta::assert_snapshot!(serde_json::to_string_pretty(&json["ratios"]).unwrap());
        assert_eq!(json["runs"][1]["disturbance"]["state"], "disturbed");
        assert!(json["runs"][0]["share_of_ceiling"].is_null() && json["version"].is_string());
    }
}
