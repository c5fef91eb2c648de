//! Figures with a line for each engine of the FW-KV paper: FW-KV, Walter and a two-phase commit (fwkv.md, section 7).
//!
//! The paper's closed loops are short of messages and not of processor time, so the shape that counts is that of ratios. Nodes are
//! here in one process, a delay between any two of them is injected, and what the paper has in multiples of its delay is as many
//! of ours. A ratio is of two runs of one repetition; with five repetitions the middle one is between the least and the most of
//! them with a probability of 94%.

use ordain_engines::registry::option;
use ordain_model::{Micros, OptionValue};

use super::contest::grid;
use super::experiment::{Experiment, LINEAR, Line, Logging, PICTURE, Picture};
use super::summary::{NOT_MEASURED, or_not};
use super::verdict::Claim;
use super::{Measured, Shape, Summary};
use crate::agreement::Agreement;
use crate::host::Host;
use crate::plot::{Series, si};
use crate::report::Run;

/// The paper's engine.
pub const FWKV: &str = "FW-KV";
/// The engine that it is compared with.
pub const WALTER: &str = "Walter";
/// The paper's baseline: optimistic, serializable, one version of each record.
pub const TWO_PHASE: &str = "2PC";
/// The lines, each with its engine.
pub const ENGINES: [(&str, &str); 3] = [(FWKV, "fwkv"), (WALTER, "walter"), (TWO_PHASE, "occ-2pc")];

/// Options by which FW-KV and Walter install and forget as in the paper.
const PAPERS: [(&str, &str); 2] = [("install", "paper"), ("gc-ids", "remove")];
/// Stands behind the names of such lines.
const AS_IN_PAPER: &str = "as in the paper";

/// Nodes that stand for the paper's 20.
pub const NODES: u16 = 4;
/// The paper's clients of a node.
pub const CLIENTS: usize = 5;
/// The paper's clients of all nodes, with which its numbers of keys are meant.
const PAPERS_CLIENTS: u64 = 100;
/// The time from one node to another, one way: the paper's is 20 us. With less two cores have too much to do for this to be what is waited for.
pub const WAY: Micros = Micros(1_000);
/// The paper's delay of what homes tell each other, as multiples of the way: 1 ms is called a slowdown by 5, and is one by 50.
pub const DELAYS: [u64; 2] = [5, 50];
/// The cores that may be in use for a figure to be one of messages.
const IN_USE_MAX: f64 = 0.6;

/// The base of all figures.
pub const PSI: Experiment = Experiment { log: Logging::FWKV, ..Experiment::PLAIN };

/// Aborted attempts of updates over all places.
pub const ABORTS: Picture = Picture {
    suffix: ": aborts",
    y: ("aborted attempts of updates", "%", LINEAR),
    series: aborts,
    ..PICTURE
};

/// The keys of so many clients that meet as often as the paper's 100 on so many.
pub fn keys(papers: u64, clients: usize) -> u64 {
    papers * clients as u64 / PAPERS_CLIENTS
}

/// A line of an engine on so many nodes.
pub fn line(name: impl Into<String>, engine: &str, nodes: u16) -> Line {
    Line::cluster(name, grid(nodes, WAY), CLIENTS * usize::from(nodes)).by(engine)
}

/// The line with announcements that are late by so many ways.
pub fn delayed(line: Line, ways: u64) -> Line {
    line.set("propagate-delay-us", OptionValue::Integer(ways * WAY.0))
}

/// A line, and the same with the paper's options, if its engine has one of them.
pub fn with_papers(line: Line) -> Vec<Line> {
    with_options(line, &PAPERS)
}

/// The same with these options.
fn with_options(line: Line, options: &[(&str, &'static str)]) -> Vec<Line> {
    let mut papers = Line { name: as_in_paper(&line.name), ..line.clone() };
    for (name, value) in options {
        let info = option(name).expect("an engine has this option");
        if papers.ours.options.has(info) {
            papers = papers.with(info, OptionValue::Name(value));
        }
    }
    if papers.ours == line.ours { vec![line] } else { vec![line, papers] }
}

/// The name of the line with the paper's options.
fn as_in_paper(line: &str) -> String {
    format!("{line}, {AS_IN_PAPER}")
}

/// The options with which FW-KV and Walter are held against the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settings {
    Papers,
    Ours,
}

impl Settings {
    /// The settings that were measured, the paper's first.
    pub fn of(measured: &Measured) -> Vec<Settings> {
        let has_papers = measured.lines().iter().any(|line| line.ends_with(AS_IN_PAPER));
        if has_papers { vec![Settings::Papers, Settings::Ours] } else { vec![Settings::Ours] }
    }

    /// The settings that stand beside the paper's numbers.
    pub fn beside(measured: &Measured) -> Settings {
        Settings::of(measured)[0]
    }

    /// The name of a line with these options; the two-phase commit has none of them.
    pub fn line(self, line: &str) -> String {
        match self {
            Settings::Papers if !line.starts_with(TWO_PHASE) => as_in_paper(line),
            _ => line.to_owned(),
        }
    }

    /// A requirement of such lines.
    pub fn must(self, must: &str) -> String {
        match self {
            Settings::Papers => format!("{AS_IN_PAPER}: {must}"),
            Settings::Ours => must.to_owned(),
        }
    }

    /// The ratio of two lines with these options at each place.
    pub fn paired(self, measured: &Measured, over: &str, under: &str, of: fn(&Run) -> f64) -> Series {
        paired(measured, &self.line(over), &self.line(under), of)
    }
}

/// The kinds of transactions that only read.
const READERS: [&str; 3] = ["read-only", "order_status", "stock_level"];

/// Transactions that only read, as a share of those that committed.
pub fn readers(run: &Run) -> f64 {
    let committed = |is_meant: fn(&str) -> bool| {
        let kinds = run.kinds.iter().filter(|(kind, _)| is_meant(kind));
        kinds.map(|(_, of_kind)| of_kind.committed).sum::<u64>() as f64
    };
    committed(|kind| READERS.contains(&kind)) / committed(|_| true).max(1.0)
}

/// Aborted attempts of updates as a share of their attempts. What only reads aborts with none of the two engines: its attempts are left out.
pub fn aborted(run: &Run) -> f64 {
    let Some(Agreement { attempts_per_txn, .. }) = run.agreement else { return 0.0 };
    let failed = run.agreement.as_ref().map_or(0.0, Agreement::failed_share) * attempts_per_txn;
    failed / (attempts_per_txn - readers(run)).max(f64::MIN_POSITIVE)
}

/// A line's aborted attempts of updates, in percent.
pub fn aborts(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| aborted(run) * 100.0)
}

/// Readers that participants took along when they validated an update, for each update that committed.
pub fn collected(run: &Run) -> f64 {
    for_each_update(run, |all| all.collected_per_txn)
}

/// Readers that the commit of an update named.
pub fn named(run: &Run) -> f64 {
    for_each_update(run, |all| all.named_per_txn)
}

fn for_each_update(run: &Run, of: fn(&Agreement) -> f64) -> f64 {
    let updates = (1.0 - readers(run)).max(f64::MIN_POSITIVE);
    run.agreement.as_ref().map_or(0.0, of) / updates
}

/// Throughput.
pub fn rate(run: &Run) -> f64 {
    run.txn_per_s
}

/// The ratio of two lines at each place, by their runs of the same repetition.
pub fn paired(measured: &Measured, over: &str, under: &str, of: fn(&Run) -> f64) -> Series {
    let under_places = measured.places(under);
    let mut points = Vec::new();
    for (x, runs) in measured.places(over) {
        let Some((_, others)) = under_places.iter().find(|(at, _)| *at == x) else { continue };
        let ratios = runs.iter().filter_map(|run| {
            let other = others.iter().find(|other| other.repetition == run.repetition)?;
            Some(of(run) / of(other)).filter(|ratio| ratio.is_finite())
        });
        let ratios: Vec<f64> = ratios.collect();
        if !ratios.is_empty() {
            points.push((x, ratios));
        }
    }
    let disturbed = [over, under].into_iter().flat_map(|line| measured.clock(line).disturbed).collect();
    Series { disturbed, ..Series::repeated(format!("{over} over {under}"), &points) }
}

/// The lowest point of some series: its series, its place and its value.
pub fn least(series: &[Series]) -> Option<(&str, f64, f64)> {
    let points = series.iter().flat_map(|of| of.points.iter().map(|(x, y)| (of.name.as_str(), *x, *y)));
    points.min_by(|one, other| one.2.total_cmp(&other.2))
}

/// Requires that some ratios are no lower than this anywhere; the lowest is named.
pub fn no_less(must: impl Into<String>, series: &[Series], bound: f64) -> Shape {
    let least = least(series);
    let shape = Shape::number(must, Claim::AtLeast(bound), least.map(|(_, _, ratio)| ratio));
    match least {
        Some((name, x, ratio)) => Shape { ours: format!("{ratio:.2}: {name} at {}", si(x)), ..shape },
        None => shape,
    }
}

/// The value at a place with the least and the most of the repetitions.
pub fn with_spread(series: &Series, x: f64) -> String {
    let place = series.points.iter().position(|(at, _)| *at == x);
    or_not(place, |place| {
        let value = series.points[place].1;
        match series.spread.as_ref().and_then(|spread| spread.get(place)) {
            Some((low, high)) => format!("{value:.2} ({low:.2} to {high:.2})"),
            None => format!("{value:.2}"),
        }
    })
}

/// The lowest point of some ratios, with the least and the most of its repetitions.
pub fn lowest(series: &[Series]) -> String {
    let least = least(series).and_then(|(name, x, _)| Some((series.iter().find(|of| of.name == name)?, x)));
    or_not(least, |(of, x)| format!("{} at {}: {}", of.name, si(x), with_spread(of, x)))
}

/// The most of the cores that any place of a line has in use, as a share.
pub fn in_use(measured: &Measured) -> Option<f64> {
    let cores = Host::look().cores as f64;
    let used = |run: &Run| run.cpu_us_per_txn.values().sum::<f64>() * run.txn_per_s / 1e6 / cores;
    let passed = measured.runs.iter().map(|(_, _, run)| run).filter(|run| run.passed());
    passed.map(used).max_by(f64::total_cmp)
}

/// Requires that cores are free: else it is them that are waited for, and not messages.
pub fn waits_for_messages(measured: &Measured) -> Shape {
    let must = "messages are waited for and not the processor: the share of the cores in use, at the most";
    Shape::number(must, Claim::AtMost(IN_USE_MAX), in_use(measured)).of_ours()
}

/// Adds the picture of ratios, if there are any.
pub fn add_ratios(figure: &Experiment, summary: &mut Summary, suffix: &str, series: Vec<Series>) {
    let series: Vec<Series> = series.into_iter().filter(|of| !of.points.is_empty()).collect();
    if !series.is_empty() {
        summary.plots.push(figure.plot(suffix, ("ratio", "", LINEAR), series));
    }
}

/// The line of an engine whose announcements are that many ways late.
pub fn late(engine: &str, ways: u64) -> String {
    format!("{engine}, {ways} ways late")
}

/// FW-KV and Walter, with announcements in time and late.
pub fn in_time_and_late() -> Vec<Line> {
    let of = |(name, engine): (&str, &str)| {
        let late = DELAYS.map(|ways| delayed(line(late(name, ways), engine, NODES), ways));
        [line(name, engine, NODES)].into_iter().chain(late).flat_map(with_papers).collect::<Vec<_>>()
    };
    [of(ENGINES[0]), of(ENGINES[1])].concat()
}

/// Requires of Walter's aborts over FW-KV's that they are this many times as many everywhere, where announcements are as late as the paper's.
pub fn walter_aborts_more(measured: &Measured, settings: Settings, least: f64) -> Shape {
    let [_, most] = DELAYS;
    let ratios = settings.paired(measured, &late(WALTER, most), &late(FWKV, most), aborted);
    no_less(settings.must("delayed, Walter's aborts over FW-KV's: the lowest ratio"), &[ratios], least)
}

/// The aborts of a line at each place.
pub fn aborts_at(measured: &Measured, line: &str) -> String {
    let aborts = aborts(measured, line);
    let points = aborts.points.iter().map(|(x, _)| format!("{}% at {}", with_spread(&aborts, *x), si(*x)));
    let all = points.collect::<Vec<_>>().join(", ");
    if all.is_empty() { NOT_MEASURED.to_owned() } else { format!("{line}: {all}") }
}

/// The aborts of Walter and FW-KV, one line each, as the paper has them.
pub fn aborts_of_both(measured: &Measured, late_by: Option<u64>) -> String {
    let name = |engine: &str| late_by.map_or_else(|| engine.to_owned(), |ways| late(engine, ways));
    let settings = Settings::beside(measured);
    [WALTER, FWKV].map(|engine| aborts_at(measured, &settings.line(&name(engine)))).join("; ")
}

/// The pictures of Walter's aborts over FW-KV's.
pub fn add_ratios_of_aborts(figure: &Experiment, measured: &Measured, summary: &mut Summary) {
    let of = |settings: Settings| {
        let in_time = settings.paired(measured, WALTER, FWKV, aborted);
        let late =
            DELAYS.map(|ways| settings.paired(measured, &late(WALTER, ways), &late(FWKV, ways), aborted));
        [in_time].into_iter().chain(late)
    };
    let ratios = Settings::of(measured).into_iter().flat_map(of).collect();
    add_ratios(figure, summary, ": Walter's over FW-KV's", ratios);
}

/// Differences to the paper that all figures share.
pub const NOTE: &str = "All nodes run in one process, with a thread and five clients each and 1 ms between any two, one way, where the paper's need 20 us; \
                        delays are as many ways as in the paper. There are as many keys for a client as in the paper. A transaction of one partition is \
                        coordinated there, others at their client's node. A refused attempt is tried again after 50 us to 5 ms, and is refused at once where the \
                        paper's waits for a lock for 1 ms.";

/// The reason for which late announcements do little with our own way to install.
pub const HEARS: &str = "A partition hears of a home's decisions by outcomes too, which come in time, and a node's snapshots begin with what its clients have \
                         seen (rules P7 and P9 of docs/protocols/fwkv.md). So what is announced late is mostly known before, by the next decision of that \
                         home that has to do with the partition. The paper's nodes learn nothing of a home while one announcement of it is missing.";

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;
    use crate::plot::testing;
    use crate::report::KindOfRun;

    /// A run at a place of a line, with its attempts for each transaction and how many of them failed.
    fn run(
        line: &str,
        x: f64,
        repetition: usize,
        (rate, attempts, failed): (f64, f64, f64),
    ) -> (String, f64, Run) {
        let kind = |committed| KindOfRun { committed, ..KindOfRun::default() };
        let agreement = Agreement {
            attempts_per_txn: attempts,
            failed: [("vote_no", failed / attempts)].into(),
            ..Agreement::default()
        };
        let kinds = [("read-only", kind(20)), ("update", kind(80))].into();
        let run = Run { kinds, agreement: Some(agreement), ..testing::run("e", repetition, rate, true) };
        (line.to_owned(), x, run)
    }

    #[test]
    fn aborts_are_of_the_attempts_of_updates() {
        let runs = vec![run(FWKV, 1.0, 1, (100.0, 1.2, 0.2))];
        let measured = Measured { runs, ..Measured::default() };
        // 0.8 updates for each transaction, and 0.2 attempts of them that failed.
        let [(_, percent)] = aborts(&measured, FWKV).points[..] else { panic!() };
        assert!((percent - 20.0).abs() < 1e-9, "{percent}");
        let none = Run { agreement: Some(Agreement::default()), ..testing::run("e", 1, 1.0, true) };
        let of_none = [aborted(&testing::run("e", 1, 1.0, true)), aborted(&none)];
        assert_eq!(of_none.map(|share| format!("{share:.1}")), ["0.0", "0.0"]);
    }

    #[test]
    fn ratios_are_of_runs_of_one_repetition() {
        let runs = vec![
            run(FWKV, 1.0, 1, (90.0, 1.0, 0.0)),
            run(WALTER, 1.0, 1, (100.0, 1.0, 0.0)),
            run(FWKV, 1.0, 2, (200.0, 1.0, 0.0)),
            run(WALTER, 1.0, 2, (200.0, 1.0, 0.0)),
            run(FWKV, 2.0, 1, (50.0, 1.0, 0.0)),
            run(WALTER, 2.0, 2, (100.0, 1.0, 0.0)),
            run(FWKV, 3.0, 1, (50.0, 1.0, 0.0)),
        ];
        let measured = Measured { runs, ..Measured::default() };
        let ratio = paired(&measured, FWKV, WALTER, rate);
        assert_eq!((ratio.points.len(), ratio.name.as_str()), (1, "FW-KV over Walter"));
        assert_eq!(with_spread(&ratio, 1.0), "0.95 (0.90 to 1.00)");
        assert_eq!(with_spread(&ratio, 2.0), "not measured");
        assert_eq!(lowest(std::slice::from_ref(&ratio)), "FW-KV over Walter at 1: 0.95 (0.90 to 1.00)");
        let verdict = |bound| no_less("m", std::slice::from_ref(&ratio), bound);
        assert_eq!(verdict(0.9).verdict, Verdict::Holds);
        assert_eq!(verdict(0.96).verdict, Verdict::Below);
        assert_eq!(verdict(0.9).ours, "0.95: FW-KV over Walter at 1");
        assert_eq!(no_less("m", &[], 1.0).verdict, Verdict::Unknown);
        // Where nothing aborts there is no ratio of aborts.
        assert_eq!(paired(&measured, FWKV, WALTER, aborted).points, []);
    }

    #[test]
    fn lines_with_the_papers_options_are_held_against_it_first() {
        let runs = vec![run(FWKV, 1.0, 1, (90.0, 1.0, 0.0)), run(WALTER, 1.0, 1, (100.0, 1.0, 0.0))];
        let mut measured = Measured { runs, ..Measured::default() };
        assert_eq!(Settings::of(&measured), [Settings::Ours]);
        assert_eq!(
            lowest(&[Settings::beside(&measured).paired(&measured, FWKV, WALTER, rate)]),
            "FW-KV over Walter at 1: 0.90"
        );
        for (line, rate) in [(FWKV, 50.0), (WALTER, 100.0)] {
            measured.runs.push(run(&as_in_paper(line), 1.0, 1, (rate, 1.0, 0.0)));
        }
        assert_eq!(Settings::of(&measured), [Settings::Papers, Settings::Ours]);
        let beside = Settings::beside(&measured);
        assert_eq!(beside.paired(&measured, FWKV, WALTER, rate).at(1.0), Some(0.5));
        assert_eq!(
            (beside.line(TWO_PHASE), beside.must("m")),
            (TWO_PHASE.to_owned(), "as in the paper: m".to_owned())
        );
    }

    #[test]
    fn a_line_has_the_papers_options_beside_it_if_its_engine_has_them() {
        let names = |option| {
            let lines = with_options(line(WALTER, "walter", NODES), &[option]);
            lines
                .into_iter()
                .map(|line| (line.name, line.ours.to_string().contains("backoff=none")))
                .collect::<Vec<_>>()
        };
        let ours = (WALTER.to_owned(), false);
        assert_eq!(names(("backoff", "none")), [ours.clone(), ("Walter, as in the paper".to_owned(), true)]);
        assert_eq!(names(("prewrite", "access")), [ours]);
    }

    #[test]
    fn a_busy_processor_is_told() {
        let cores = Host::look().cores as f64;
        let busy = |share: f64| {
            let (line, x, run) = run(FWKV, 1.0, 1, (1_000.0, 1.0, 0.0));
            let cpu_us_per_txn = [("manager".to_owned(), share * cores * 1_000.0)].into();
            let runs = vec![(line, x, Run { cpu_us_per_txn, ..run })];
            waits_for_messages(&Measured { runs, ..Measured::default() }).verdict
        };
        assert_eq!([0.59, 0.61].map(busy), [Verdict::Holds, Verdict::Differs]);
        assert_eq!(waits_for_messages(&Measured::default()).verdict, Verdict::Unknown);
    }

    #[test]
    fn a_delay_is_so_many_ways() {
        let late = delayed(line(WALTER, "walter", NODES), 50);
        assert!(late.ours.to_string().contains("--option propagate-delay-us=50000"), "{}", late.ours);
        assert_eq!((late.clients, keys(50_000, late.clients)), (20, 10_000));
    }
}
