//! The plot of `ordain bench … --plot`, which follows from the runs.
//!
//! If a number was swept, it is the axis, and everything else that differs between the runs names a line. If not,
//! each setting is a bar. Runs whose checks failed are no result: they are not drawn, which the plot notes.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Axis, Kind, Plot, Scale, Series, Style};
use crate::conditions::caption;
use crate::disturbance::State;
use crate::ratio::{disturbance, free};
use crate::report::{Check, Latency, Run, grouped, median};

/// Everything that can differ between two runs, by name, in the order of the report.
fn knobs(run: &Run) -> Vec<(String, Value)> {
    let fixed = [
        ("engine", Value::from(run.engine.clone())),
        ("workload", run.workload.to_string().into()),
        ("nodes", run.nodes.into()),
        ("threads", run.threads.into()),
        ("clients", run.clients.into()),
    ];
    let params = run.params.iter().map(|(name, value)| (name.clone(), value.clone()));
    fixed.into_iter().map(|(name, value)| (name.to_owned(), value)).chain(params).collect()
}

fn knob(run: &Run, name: &str) -> Option<Value> {
    knobs(run).into_iter().find(|(known, _)| known == name).map(|(_, value)| value)
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), super::si),
        other => other.to_string(),
    }
}

/// True if the run is the ceiling.
fn is_ceiling(run: &Run) -> bool {
    run.engine == "ceiling"
}

/// The runs of engines, or the ceiling's where there are no others: it has no knobs that an engine does not have.
fn of_engines<'a>(runs: &[&'a Run]) -> Vec<&'a Run> {
    let engines: Vec<&Run> = runs.iter().copied().filter(|run| !is_ceiling(run)).collect();
    if engines.is_empty() { runs.to_vec() } else { engines }
}

/// The names of the knobs that differ, and the values of each.
fn varied(runs: &[&Run]) -> Vec<(String, Vec<Value>)> {
    let mut found = grouped(of_engines(runs).into_iter().flat_map(knobs));
    for (_, values) in &mut found {
        let all = std::mem::take(values);
        values.extend(grouped(all.into_iter().map(|value| (value, ()))).into_iter().map(|(value, _)| value));
    }
    found.retain(|(_, values)| values.len() > 1);
    found
}

/// The knob that is the axis: the number with the most values.
fn swept(varied: &[(String, Vec<Value>)]) -> Option<(String, Vec<f64>)> {
    let numbers = varied.iter().filter_map(|(name, values)| {
        let numbers: Option<Vec<f64>> = values.iter().map(Value::as_f64).collect();
        Some((name.clone(), numbers?))
    });
    // The first of equals.
    numbers.reduce(|longest, next| if next.1.len() > longest.1.len() { next } else { longest })
}

/// The names of the varied knobs of a run, without one.
fn name(run: &Run, varied: &[(String, Vec<Value>)], without: &[&str]) -> String {
    let mut words = Vec::new();
    for (knob_name, _) in varied.iter().filter(|(name, _)| !without.contains(&name.as_str())) {
        let Some(value) = knob(run, knob_name) else { continue };
        match (knob_name.as_str(), value.is_string()) {
            (_, true) => words.push(text(&value)),
            (name, false) => words.push(format!("{} {}", name.replace('_', " "), text(&value))),
        }
    }
    words.join(", ")
}

/// The knobs that all of the runs have in common.
fn circumstances(runs: &[&Run]) -> String {
    let Some(first) = of_engines(runs).first().copied() else { return String::new() };
    let varied = varied(runs);
    let known =
        ["records", "warehouses", "ops_per_txn", "record_bytes", "write_ratio", "theta", "contention_index"];
    let known = known.into_iter().chain(["threads"]);
    let common = known.filter(|name| !varied.iter().any(|(varied, _)| varied == name));
    let words = common.filter_map(|name| {
        let value = knob(first, name)?;
        Some(format!("{} {}", name.replace('_', " "), text(&value)))
    });
    let words = words.collect::<Vec<_>>().join(", ");
    let parts = [words, caption(runs.iter().copied())];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("; ")
}

/// The runs that may be drawn, and notes on the others.
fn sound(runs: &[Run]) -> (Vec<&Run>, Vec<String>) {
    let passed: Vec<&Run> = runs.iter().filter(|run| run.passed()).collect();
    let failed = runs.len() - passed.len();
    let mut notes = Vec::new();
    if failed > 0 {
        let checks = runs.iter().flat_map(|run| &run.checks).filter(|(_, check)| **check == Check::Fail);
        let names = checks.map(|(name, _)| *name).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>();
        notes.push(format!(
            "{failed} of {} runs failed their checks ({}) and are not drawn.",
            runs.len(),
            names.join(", ")
        ));
    }
    let unwatched = passed.iter().filter(|run| run.disturbance.state == State::Unknown).count();
    if unwatched > 0 {
        notes.push(format!(
            "In {unwatched} of {} runs the use of the machine by others is unknown.",
            runs.len()
        ));
    }
    let repetitions = passed.iter().map(|run| run.repetition).max().unwrap_or(1);
    if repetitions > 1 {
        notes.push(format!(
            "Medians of {repetitions} interleaved repetitions; whiskers from the least to the most."
        ));
    }
    (passed, notes)
}

fn title(runs: &[&Run], what: &str) -> String {
    let workloads: BTreeSet<&str> = runs.iter().map(|run| run.workload).collect();
    let workloads = workloads.into_iter().collect::<Vec<_>>().join(" and ");
    let engines: BTreeSet<&str> = of_engines(runs).iter().map(|run| run.engine.as_str()).collect();
    let engine = engines.first().filter(|_| engines.len() == 1);
    format!("{what}, {workloads}{}", engine.map(|engine| format!(", {engine}")).unwrap_or_default())
}

/// Committed transactions a second, over whatever was swept.
pub fn of_runs(runs: &[Run]) -> Plot {
    let (runs, notes) = sound(runs);
    let varied = varied(&runs);
    let (x, kind, series) = match swept(&varied) {
        Some((axis, values)) => {
            let (low, high) = values.iter().fold((f64::MAX, 0f64), |(l, h), v| (l.min(*v), h.max(*v)));
            let scale = if low > 0.0 && high / low >= 20.0 { Scale::Log } else { Scale::Linear };
            let series = lines(&runs, &varied, &axis);
            (Axis::new(&axis.replace('_', " "), "", scale), Kind::Lines, series)
        }
        None => {
            let (categories, series) = bars(&runs, &varied);
            (Axis::new("", "", Scale::Categories(categories)), Kind::Bars, series)
        }
    };
    Plot {
        title: title(&runs, "Throughput"),
        subtitle: circumstances(&runs),
        x,
        y: Axis::throughput(),
        kind,
        series,
        notes,
    }
}

/// The throughputs of some runs by a place that each of them has: of those that count, with a mark where the machine was
/// disturbed.
fn series(name: impl Into<String>, runs: &[&Run], place: impl Fn(&Run) -> Option<f64>) -> Series {
    let mut places = grouped(runs.iter().filter_map(|run| Some((place(run)?, *run))));
    places.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    let is_disturbed = |runs: &[&Run]| disturbance(runs).state == State::Disturbed;
    let disturbed = places.iter().filter(|(_, runs)| is_disturbed(runs)).map(|(x, _)| *x).collect();
    let rates = |runs: Vec<&Run>| free(&runs).iter().map(|run| run.txn_per_s).collect();
    let points: Vec<(f64, Vec<f64>)> = places.into_iter().map(|(x, runs)| (x, rates(runs))).collect();
    Series { disturbed, ..Series::repeated(name, &points) }
}

/// A line for each setting of the other knobs.
fn lines(runs: &[&Run], varied: &[(String, Vec<Value>)], axis: &str) -> Vec<Series> {
    let named = |run: &Run| match (is_ceiling(run), name(run, varied, &[axis])) {
        (true, name) if !name.contains(&run.engine) => format!("{} {name}", run.engine).trim_end().to_owned(),
        (false, name) if name.is_empty() => run.engine.clone(),
        (_, name) => name,
    };
    let groups = group(runs, named).into_iter().map(|(name, group)| {
        let style = if is_ceiling(group[0]) { Style::Reference } else { Style::Measured };
        Series { style, ..series(name, &group, |run| knob(run, axis).and_then(|value| value.as_f64())) }
    });
    groups.collect()
}

/// A bar for each setting, a colour for each engine if there are several and they differ in more than their names;
/// the ceiling is a line all across.
fn bars(runs: &[&Run], varied: &[(String, Vec<Value>)]) -> (Vec<String>, Vec<Series>) {
    let is_varied = |wanted: &str| varied.iter().any(|(name, _)| name == wanted);
    let by_engine = is_varied("engine") && varied.len() > 1;
    let category = |run: &Run| {
        let name = name(run, varied, if by_engine { &["engine"] } else { &[] });
        if name.is_empty() { run.engine.clone() } else { name }
    };
    let engines = of_engines(runs);
    let categories: Vec<String> =
        group(&engines, category).into_iter().map(|(category, _)| category).collect();
    let place = |run: &Run| categories.iter().position(|known| *known == category(run)).map(|x| x as f64);
    let named = |run: &Run| if by_engine { run.engine.clone() } else { "throughput".to_owned() };
    let mut all: Vec<Series> =
        group(&engines, named).into_iter().map(|(name, group)| series(name, &group, place)).collect();
    if engines.iter().all(|run| !is_ceiling(run)) {
        let ceilings: Vec<&Run> = runs.iter().copied().filter(|run| is_ceiling(run)).collect();
        for (name, group) in group(&ceilings, |run| name(run, varied, &["engine"])) {
            let rate = median(free(&group).iter().map(|run| run.txn_per_s));
            all.push(Series::reference(format!("ceiling {name}").trim_end(), vec![(0.0, rate)]));
        }
    }
    (categories, all)
}

/// Runs by name, in the order in which they ran.
fn group<'a>(runs: &[&'a Run], name: impl Fn(&Run) -> String) -> Vec<(String, Vec<&'a Run>)> {
    grouped(runs.iter().map(|run| (name(run), *run)))
}

/// The distribution of latencies; nothing if no run has any.
pub fn latency_of_runs(runs: &[Run]) -> Option<Plot> {
    let (runs, mut notes) = sound(runs);
    let runs: Vec<&Run> = runs.into_iter().filter(|run| run.latency_us.max > 0).collect();
    if runs.is_empty() {
        return None;
    }
    notes.retain(|note| !note.starts_with("Medians"));
    notes.push("The quantiles of the report, joined by lines.".to_owned());
    let varied = varied(&runs);
    let quantiles = |l: &Latency| [(0.5, l.p50), (0.95, l.p95), (0.99, l.p99), (0.999, l.p999)];
    let series = group(&runs, |run| name(run, &varied, &[])).into_iter().map(|(name, group)| {
        let point = |number: usize| {
            let of = |run: &Run| quantiles(&run.latency_us)[number];
            // A microsecond is the resolution.
            (median(free(&group).iter().map(|run| of(run).1 as f64)).max(1.0), of(group[0]).0)
        };
        let name = if name.is_empty() { group[0].engine.clone() } else { name };
        Series::measured(name, [0, 1, 2, 3].map(point).to_vec())
    });
    Some(Plot {
        title: title(&runs, "Latency"),
        subtitle: circumstances(&runs),
        x: Axis::new("from submission to answer", "µs", Scale::Log),
        y: Axis::new("answered within", "", Scale::Nines),
        kind: Kind::Cdf,
        series: series.collect(),
        notes,
    })
}

/// Runs that tests make up.
#[cfg(test)]
pub(crate) mod testing {
    use std::collections::BTreeMap;

    use crate::conditions::Conditions;
    use crate::disturbance::{Disturbance, State};
    use crate::report::{Check, Run};

    /// The conditions of [`run`].
    pub(crate) fn conditions() -> Conditions {
        Conditions {
            durability: "fsync".to_owned(),
            log: "logged and synced before an answer".to_owned(),
            replication: "none".to_owned(),
            members: 1,
            clients: "2000 clients, each asks again when it is answered".to_owned(),
            batches: "batches close when the pipeline is free".to_owned(),
        }
    }

    /// A run of one second that came to this many transactions.
    pub(crate) fn run(engine: &str, repetition: usize, txn_per_s: f64, passes: bool) -> Run {
        Run {
            engine: engine.to_owned(),
            workload: "ycsb",
            nodes: 1,
            threads: 2,
            clients: 2000,
            seed: 1,
            repetition,
            seconds: 1.0,
            committed: txn_per_s as u64,
            txn_per_s,
            op_per_s: txn_per_s * 10.0,
            checks: BTreeMap::from([("counters", Check::from(passes))]),
            conditions: conditions(),
            disturbance: Disturbance {
                state: State::Free,
                others_cores: Some(0.0),
                stolen_cores: Some(0.0),
                why: None,
            },
            ..Run::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Map;

    use super::testing::run;
    use super::*;
    use crate::disturbance::Disturbance;

    fn with(engine: &str, repetition: usize, rate: f64, knobs: &[(&str, Value)]) -> Run {
        let params: Map<String, Value> =
            knobs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        Run { params, ..run(engine, repetition, rate, true) }
    }

    #[test]
    fn a_swept_number_is_the_axis_and_the_rest_names_the_lines() {
        let mut runs = Vec::new();
        for repetition in 1..=3 {
            for durability in ["fsync", "none"] {
                for (theta, rate) in [(0.9, 50.0), (0.0, 100.0)] {
                    let knobs = [("theta", theta.into()), ("durability", durability.into())];
                    runs.push(with("calvin", repetition, rate + repetition as f64, &knobs));
                }
            }
        }
        let plot = of_runs(&runs);
        assert_eq!((plot.kind, plot.x.label.as_str()), (Kind::Lines, "theta"));
        let names: Vec<&str> = plot.series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["fsync", "none"]);
        assert_eq!(plot.series[0].points, [(0.0, 102.0), (0.9, 52.0)]);
        assert_eq!(plot.series[0].spread, Some(vec![(101.0, 103.0), (51.0, 53.0)]));
        assert!(plot.notes[0].contains("3 interleaved repetitions"), "{:?}", plot.notes);
        assert!(plot.title.contains("calvin") && plot.subtitle.contains("threads"), "{plot:?}");
        assert!(
            plot.subtitle.ends_with(&caption([&runs[0]])) && plot.subtitle.contains("synced"),
            "{plot:?}"
        );
    }

    #[test]
    fn without_a_swept_number_each_setting_is_a_bar() {
        let one = with("calvin", 1, 10.0, &[("durability", "fsync".into())]);
        let two = with("calvin", 1, 20.0, &[("durability", "none".into())]);
        let plot = of_runs(&[one.clone(), two.clone()]);
        assert_eq!(plot.kind, Kind::Bars);
        assert_eq!(plot.x.scale, Scale::Categories(vec!["fsync".to_owned(), "none".to_owned()]));
        assert_eq!(plot.series[0].points, [(0.0, 10.0), (1.0, 20.0)]);
        let other =
            |run: &Run, rate: f64| Run { engine: "qstore".to_owned(), txn_per_s: rate, ..run.clone() };
        let plot = of_runs(&[one.clone(), two.clone(), other(&one, 30.0), other(&two, 40.0)]);
        let series: Vec<_> = plot.series.iter().map(|s| (s.name.as_str(), s.points.as_slice())).collect();
        assert_eq!(series[0], ("calvin", &[(0.0, 10.0), (1.0, 20.0)][..]));
        assert_eq!(series[1], ("qstore", &[(0.0, 30.0), (1.0, 40.0)][..]));
        let ceiling = Run { clients: 0, ..run("ceiling", 1, 90.0, true) };
        let plot = of_runs(&[one, ceiling]);
        assert_eq!(plot.x.scale, Scale::Categories(vec!["calvin".to_owned()]));
        assert_eq!(plot.series[1], Series::reference("ceiling", vec![(0.0, 90.0)]));
    }

    #[test]
    fn a_run_whose_checks_failed_is_not_drawn_and_the_ceiling_is_a_reference() {
        let runs = [
            with("calvin", 1, 10.0, &[("theta", 0.0.into())]),
            with("calvin", 1, 5.0, &[("theta", 0.5.into())]),
            run("calvin", 1, 1e9, false),
            Run { clients: 0, ..with("ceiling", 1, 50.0, &[("theta", 0.0.into())]) },
            Run { clients: 0, ..with("ceiling", 1, 40.0, &[("theta", 0.5.into())]) },
        ];
        let plot = of_runs(&runs);
        assert_eq!(plot.x.label, "theta");
        assert!(plot.notes[0].contains("1 of 5 runs failed"), "{:?}", plot.notes);
        let looks: Vec<_> = plot.series.iter().map(|s| (s.name.as_str(), s.style)).collect();
        assert_eq!(looks, [("calvin", Style::Measured), ("ceiling", Style::Reference)]);
        assert!(plot.series.iter().all(|series| series.points.iter().all(|(_, y)| *y < 1e6)));
    }

    #[test]
    fn disturbed_points_are_crossed_out_and_what_failed_is_named() {
        let disturbed = |run: Run| {
            let why = Some("others used 0.80 cores".to_owned());
            let disturbance = Disturbance { state: State::Disturbed, why, ..Disturbance::default() };
            Run { disturbance, ..run }
        };
        let at = |repetition, theta: f64, rate| with("calvin", repetition, rate, &[("theta", theta.into())]);
        let checks = [("enough", Check::Fail)].into();
        let runs = [
            at(1, 0.0, 100.0),
            disturbed(at(1, 0.5, 10.0)),
            at(2, 0.5, 80.0),
            disturbed(at(1, 0.9, 5.0)),
            Run { checks, ..at(1, 0.99, 0.0) },
            Run { disturbance: Disturbance::default(), ..at(1, 0.2, 90.0) },
        ];
        let plot = of_runs(&runs);
        assert_eq!(plot.series[0].points, [(0.0, 100.0), (0.2, 90.0), (0.5, 80.0), (0.9, 5.0)]);
        assert_eq!(plot.series[0].disturbed, [0.9]);
        assert!(plot.notes[0].starts_with("1 of 6 runs failed their checks (enough)"), "{:?}", plot.notes);
        assert!(plot.notes[1].starts_with("In 1 of 6 runs"), "{:?}", plot.notes);
        insta::assert_snapshot!(plot.svg());
    }

    #[test]
    fn latencies_of_those_who_were_answered() {
        assert!(latency_of_runs(&[run("a", 1, 1.0, true)]).is_none());
        let latency_us = Latency { mean: 12.0, p50: 10, p95: 20, p99: 30, p999: 40, max: 50 };
        let plot = latency_of_runs(&[Run { latency_us, ..run("a", 1, 1.0, true) }]).unwrap();
        assert_eq!(plot.series[0].points, [(10.0, 0.5), (20.0, 0.95), (30.0, 0.99), (40.0, 0.999)]);
        assert_eq!((plot.series[0].name.as_str(), plot.kind), ("a", Kind::Cdf));
    }

    #[test]
    fn nothing_is_drawn_as_nothing() {
        assert!(of_runs(&[]).series.iter().all(|series| series.points.is_empty()));
    }
}
