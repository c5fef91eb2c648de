//! Figures with a line for each of several engines: what the Q-Store paper's are (qstore.md, section 7).
//!
//! Engines run in turns on the very same transactions, on clusters whose nodes share this machine. By the clock, then, all
//! nodes together have its few cores, and no role waits for its one thread while the core does something else. Where the
//! paper's servers had 8 cores each, X(8) is extrapolated from the processor time that each role was measured to need
//! (calvin.md, section 7). It is shown apart, and gives no verdict.

use ordain_model::{Micros, OptionValue};

use super::experiment::{Experiment, LINEAR, Line, Logging, PICTURE, Picture, THROUGHPUT, Values};
use super::summary::or_not;
use super::{Measured, Shape};
use crate::agreement::Agreement;
use crate::demand;
use crate::embedded::{Delay, Grid};
use crate::plot::{Series, si};

/// The engine that the paper is about.
pub const QSTORE: &str = "Q-Store";
/// The best Calvin that we have.
pub const CALVIN: &str = "Calvin";
/// The Calvin that the papers compare themselves with.
pub const PAPERS: &str = "Calvin as in the papers";

/// The paper's best engine with two-phase commit.
pub const NO_WAIT: &str = "NO-WAIT";
/// What the paper's code has beside it, and its figures have not.
pub const WAIT_DIE: &str = "WAIT-DIE";
/// The paper's engine with basic timestamp ordering.
pub const TIMESTAMP: &str = "TIMESTAMP";
/// The paper's engine with multiversion timestamp ordering.
pub const MVCC: &str = "MVCC";
/// The paper's engine with dynamic timestamp ranges.
pub const MAAT: &str = "MaaT";

/// The paper's best engine with two-phase commit, with the pauses of the public code that was measured (baselines.md, B-2).
pub const NO_WAIT_DENEVA: &str = "NO-WAIT, Deneva's backoff";

/// The lines, each with its engine.
const LINES: [(&str, &str); 8] = [
    (QSTORE, "qstore"),
    (CALVIN, "calvin"),
    (PAPERS, "calvin-paper"),
    (NO_WAIT, "no-wait"),
    (WAIT_DIE, "wait-die"),
    (TIMESTAMP, "timestamp"),
    (MVCC, "mvcc"),
    (MAAT, "maat"),
];
/// The lines that order first.
const ORDERED: usize = 3;
/// The lines that agree on each transaction.
const AGREED: [&str; 5] = [NO_WAIT, WAIT_DIE, TIMESTAMP, MVCC, MAAT];

/// The paper's cores of a server.
const CORES: f64 = 8.0;
/// Nodes that stand for the paper's 16 servers.
pub const NODES: u16 = 4;
/// The time from one node to another, one way.
pub const WAY: Micros = Micros(250);
/// Transactions under way on all of them, where the figure is not about that: batches are made of them.
pub const CLIENTS: usize = 8_000;
/// Transactions under way of an engine that agrees on each: with the records of [`qstore`](super::qstore) one of a hundred is in use, as
/// in the paper, where 160,000 are under way with 16 operations each on 256 million records (baselines.md, section 7).
pub const AGREEING: usize = 400;

/// The nodes of a figure, with a delay between any two.
pub fn grid(nodes: u16, way: Micros) -> Grid {
    Grid { delay: Delay::Even(way), ..Grid::of(nodes) }
}

/// The first of the lines, as they are on four nodes.
fn lines(count: usize) -> Vec<Line> {
    let line = |(name, engine): &(&str, &str)| {
        let clients = if AGREED.contains(name) { AGREEING } else { CLIENTS };
        Line::cluster(*name, grid(NODES, WAY), clients).by(engine)
    };
    LINES.iter().take(count).map(line).collect()
}

/// The lines of the engines that order first: those of what the paper compares with Calvin alone.
pub fn ordered(_: usize) -> Vec<Line> {
    lines(ORDERED)
}

/// The lines of a figure in which attempts are refused often: pauses of half a second change its shape.
pub fn contended(_: usize) -> Vec<Line> {
    let pauses = Line::cluster(NO_WAIT_DENEVA, grid(NODES, WAY), AGREEING).by("no-wait");
    let mut all = lines(LINES.len());
    all.push(pauses.set("backoff", OptionValue::Name("deneva")));
    all
}

/// A figure of all engines on four nodes: throughput by the clock, X(8), latency and failed attempts, and demands in the middle.
pub const CONTEST: Experiment = Experiment {
    values: Values::At(&[]),
    lines: |_| lines(LINES.len()),
    plots: &[PICTURE, LATENCY, FAILED],
    extrapolated: &[MODEL],
    log: Logging::QSTORE,
    more: |figure, measured, summary| {
        let Values::At(values) = figure.values else { return };
        let middle = values[values.len() / 2];
        let demands = (figure.lines)(1)
            .into_iter()
            .map(|line| (format!("{} at {middle}", line.name), measured.demands(&line.name, middle)));
        summary.tables.push(demand::table(&demands.collect::<Vec<_>>()));
        summary.notes.push(how_it_was_run());
    },
    ..Experiment::PLAIN
};

pub const MODEL: Picture = Picture { suffix: ": X(8)", series: model, ..PICTURE };
pub const LATENCY: Picture = Picture {
    suffix: ": latency",
    y: ("p99", "ms", LINEAR),
    series: |measured, line| measured.series(line, |run| run.latency_us.p99 as f64 / 1e3),
    ..PICTURE
};
/// Attempts that came to nothing: aborts, as papers count them (baselines.md, B-13).
pub const FAILED: Picture = Picture {
    suffix: ": attempts that came to nothing",
    y: ("of all attempts", "%", LINEAR),
    has: |line| AGREED.contains(&line) || line == NO_WAIT_DENEVA,
    series: failed,
    ..PICTURE
};
/// Throughput in operations a second.
pub const OPERATIONS: Picture = Picture { y: (THROUGHPUT.0, "op/s", LINEAR), series: operations, ..PICTURE };

/// X(8): all nodes with the paper's cores.
pub fn model(measured: &Measured, line: &str) -> Series {
    measured.model(line, CORES)
}

pub fn operations(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.op_per_s)
}

fn how_it_was_run() -> String {
    format!(
        "All nodes run in one process, with a thread each and {} ms between any two, one way, and share this machine's \
         cores: throughput by the clock is that of the cores together. X(8) = nodes x min(1 / largest demand of \
         a single thread, 8 / sum of demands), clients not counted: what nodes with 8 cores each could do at best, as the \
         paper's servers had. It takes shards of one core for what shards of eight need, and knows no waiting. Engines that \
         order first have {CLIENTS} transactions under way, where the figure is not about that, and those that agree on each \
         {AGREEING}: with 640,000 records transactions of YCSB meet as often as the paper's do. A quick run of YCSB has a quarter \
         of both.",
        WAY.0 as f64 / 1e3
    )
}

/// Percent of a line's attempts that came to nothing.
fn failed(measured: &Measured, line: &str) -> Series {
    measured.series(line, |run| run.agreement.as_ref().map_or(0.0, Agreement::failed_share) * 100.0)
}

/// Aborts of the lines that agree on each transaction, at a place.
pub fn aborts(measured: &Measured, x: f64) -> String {
    let each = AGREED.map(|line| {
        let share = failed(measured, line).at(x);
        format!("{line} {}", or_not(share, |share| format!("{share:.1}%")))
    });
    each.join(", ")
}

/// Q-Store's lead over another line, as it was measured.
pub fn over(measured: &Measured, other: &str, at: Option<f64>) -> String {
    leads(measured, &[other], at, BOTH)
}

/// Q-Store's lead over the engines with two-phase commit, as it was measured.
pub fn over_two_phase(measured: &Measured, at: Option<f64>) -> String {
    leads(measured, &AGREED, at, BOTH)
}

/// Demands that aborts at a place are in this order, the most first.
pub fn aborts_in_order(measured: &Measured, order: &[&str], x: f64) -> Shape {
    let shares: Vec<Option<f64>> = order.iter().map(|line| failed(measured, line).at(x)).collect();
    let known = shares.iter().copied().collect::<Option<Vec<f64>>>();
    let must = format!("aborts at {x}: {}, the most first", order.join(", "));
    Shape::of(must, known.map(|shares| (shares.is_sorted_by(|one, two| one >= two), aborts(measured, x))))
}

/// Demands that a line is the fastest of those that agree on each transaction, at each place or at one.
pub fn is_best_agreed(measured: &Measured, line: &str, at: Option<f64>) -> Shape {
    let others = AGREED.iter().filter(|other| **other != line);
    let least = others
        .flat_map(|other| {
            let of = ratios(&measured.clock(line), &measured.clock(other)).into_iter();
            of.filter(|(x, _)| at.is_none_or(|at| *x == at)).map(move |(x, ratio)| (ratio, *other, x))
        })
        .min_by(|(one, ..), (two, ..)| one.total_cmp(two));
    let place = at.map_or(String::new(), |at| format!(" at {at}"));
    let must = format!("{line} is the fastest of those that agree on each transaction{place}");
    Shape::of(must, least.map(|(ratio, other, x)| (ratio >= 1.0, format!("{ratio:.2} x {other} at {x}"))))
}

/// The ratio of two lines at each place.
pub fn ratios(over: &Series, under: &Series) -> Vec<(f64, f64)> {
    over.points.iter().filter_map(|(x, y)| Some((*x, y / under.at(*x)?))).collect()
}

/// The ratios of Q-Store's figures to those of other lines, at a place or where it is most.
fn leads(measured: &Measured, others: &[&str], at: Option<f64>, ways: &[Way]) -> String {
    let each = others.iter().map(|other| {
        let lead = |(of, by): &Way| {
            let best = best(&ratios(&of(measured, QSTORE), &of(measured, other)), at);
            format!("{} {by}", or_not(best, |(x, by)| format!("{by:.2} x at {}", si(x))))
        };
        format!("over {other}: {}", ways.iter().map(lead).collect::<Vec<_>>().join(", "))
    });
    each.collect::<Vec<_>>().join("; ")
}

/// The largest ratio at a place, or anywhere.
fn best(ratios: &[(f64, f64)], at: Option<f64>) -> Option<(f64, f64)> {
    let here = ratios.iter().filter(|(x, _)| at.is_none_or(|at| *x == at));
    here.max_by(|a, b| a.1.total_cmp(&b.1)).copied()
}

/// A figure of a line, and how it was found.
type Way = (fn(&Measured, &str) -> Series, &'static str);

/// By the clock and by processor time.
const BOTH: &[Way] = &[(Measured::clock, "by the clock"), (Measured::cpu, "by processor time")];

/// Q-Store's lead over both Calvins, as it was measured.
pub fn lead(measured: &Measured, at: Option<f64>) -> String {
    leads(measured, &[CALVIN, PAPERS], at, BOTH)
}

/// Q-Store's lead, extrapolated.
pub fn lead_by_model(measured: &Measured, at: Option<f64>) -> String {
    leads(measured, &[CALVIN, PAPERS], at, &[(model, "by X(8)")])
}

/// The factor within which a ratio is the paper's: its servers had eight virtual cores each, ours share two.
const BAND: f64 = 2.0;

/// The paper's ratio of Q-Store to Calvin, against ours to the Calvin of the papers by the clock.
pub fn lead_as_papers(measured: &Measured, must: &str, paper: f64, at: Option<f64>) -> Shape {
    let ratios = ratios(&measured.clock(QSTORE), &measured.clock(PAPERS));
    Shape::band(must, paper, BAND, best(&ratios, at).map(|(_, ratio)| ratio))
}

/// Q-Store's own throughput at a place.
pub fn own(measured: &Measured, x: f64, clock: fn(&Measured, &str) -> Series) -> String {
    or_not(clock(measured, QSTORE).at(x), |rate| format!("{} a second by the clock", si(rate)))
}

/// Q-Store's own throughput at a place, extrapolated.
pub fn own_by_model(measured: &Measured, x: f64) -> String {
    or_not(model(measured, QSTORE).at(x), |rate| format!("X(8) {} txn/s", si(rate)))
}

/// Requires that Q-Store does at least as much as our Calvin everywhere, by the clock.
pub fn is_ahead(measured: &Measured, must: &str) -> Shape {
    let ratios = ratios(&measured.clock(QSTORE), &measured.clock(CALVIN));
    let least = ratios.iter().map(|(_, ratio)| *ratio).reduce(f64::min);
    Shape::at_least(format!("{must}: the least of its ratios by the clock"), least, 1.0)
}

#[cfg(test)]
mod tests {
    use super::super::verdict::Verdict;
    use super::*;
    use crate::plot::testing;
    use crate::report::Run;

    /// A run at a place of a line, with what the shards and the sequencers of four nodes need for a transaction.
    fn run(line: &str, x: f64, rate: f64, [shard, sequencer]: [f64; 2]) -> (String, f64, Run) {
        let cpu = [("shard", shard), ("sequencer", sequencer)];
        let cpu = cpu.map(|(part, us)| (part.to_owned(), us)).into();
        (line.to_owned(), x, Run { nodes: 4, cpu_us_per_txn: cpu, ..testing::run("e", 1, rate, true) })
    }

    #[test]
    fn ratios_are_by_the_clock_by_processor_time_and_by_the_model() {
        let runs = vec![
            run(QSTORE, 1.0, 200.0, [8.0, 2.0]),
            run(CALVIN, 1.0, 100.0, [16.0, 4.0]),
            run(QSTORE, 2.0, 90.0, [10.0, 0.0]),
            run(CALVIN, 2.0, 60.0, [40.0, 0.0]),
            run(PAPERS, 1.0, 50.0, [64.0, 16.0]),
        ];
        let measured = Measured { runs, ..Measured::default() };
        // Four nodes of eight cores: the sequencer of each is busy with a quarter of all.
        assert_eq!(model(&measured, QSTORE).points, [(1.0, 2e6), (2.0, 3.2e6)]);
        assert_eq!(measured.cpu(CALVIN).points, [(1.0, 50e3), (2.0, 25e3)]);
        assert_eq!(
            lead(&measured, None),
            "over Calvin: 2.00 x at 1 by the clock, 4.00 x at 2 by processor time; over Calvin as in the papers: 4.00 x \
             at 1 by the clock, 8.00 x at 1 by processor time"
        );
        assert_eq!(
            lead_by_model(&measured, None),
            "over Calvin: 4.00 x at 2 by X(8); over Calvin as in the papers: 8.00 x at 1 by X(8)"
        );
        assert!(lead(&measured, Some(2.0)).starts_with("over Calvin: 1.50 x at 2 by the clock"));
        assert_eq!(own(&measured, 1.0, Measured::clock), "200 a second by the clock");
        assert_eq!(own_by_model(&measured, 1.0), "X(8) 2 M txn/s");
        assert_eq!(is_ahead(&measured, "ahead").verdict, Verdict::Holds);
        // The paper's number is held against what was measured: 4 x, not the 8 x of the model.
        let verdict = |paper| lead_as_papers(&measured, "m", paper, None).verdict;
        assert_eq!(
            [1.9, 2.0, 8.0, 8.1].map(verdict),
            [Verdict::Beyond, Verdict::Holds, Verdict::Holds, Verdict::Below]
        );
    }

    #[test]
    fn what_agrees_on_each_transaction_stands_beside_it_with_its_aborts() {
        let (line, x, run) = run(NO_WAIT, 1.0, 10.0, [80.0, 0.0]);
        let failed = [("lock_refused", 0.25), ("vote_no", 0.05)].into();
        let agreement = Agreement { failed, ..Agreement::default() };
        let refused = (line, x, Run { agreement: Some(agreement), ..run });
        let runs = vec![self::run(QSTORE, 1.0, 200.0, [8.0, 2.0]), refused];
        let measured = Measured { runs, ..Measured::default() };
        let over = over_two_phase(&measured, Some(1.0));
        assert!(over.starts_with("over NO-WAIT: 20.00 x at 1 by the clock, 8.00 x at 1 by"), "{over}");
        assert!(over.contains("over WAIT-DIE: not measured by the clock"), "{over}");
        assert_eq!(
            aborts(&measured, 1.0),
            "NO-WAIT 30.0%, WAIT-DIE not measured, TIMESTAMP not measured, MVCC not measured, MaaT not measured"
        );
    }

    #[test]
    fn a_lead_that_was_not_measured_is_unknown() {
        let measured = Measured::default();
        assert!(lead(&measured, None).contains("not measured by the clock"));
        assert_eq!(is_ahead(&measured, "ahead").verdict, Verdict::Unknown);
    }
}
