//! The PaxFlow paper's figure (paxflow.md, section 7), on one node: reads through the lock manager, and past it.
//!
//! The paper has one baseline, a Calvin with one lock thread, and paxflow.md asks for two: that, which here is the engine
//! `calvin-paper`, and a good one, with locks divided among the shards, nothing handed from thread to thread, and a lock that
//! is taken in no queue unless another transaction waits for it. The paper's 4.3 x stands beside the ratio to the first; the
//! ratio to the second is the gain of the idea itself.

use ordain_model::Reads;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::Parameters;

use super::calvin::{BAND, on_cores, one_node};
use super::experiment::{Experiment, Line, Logging};
use super::qstore::ycsb;
use super::summary::{or_not, rate_at};
use super::{Measured, Shape, Size};
use crate::table::{Cell, Table};

/// The paper's throughputs of Calvin and of PaxFlow, on 72 logical cores.
const CALVIN: f64 = 3_200.0;
const PAXFLOW: f64 = 13_700.0;

/// The paper's records, and transactions that only read: 100 of them, 1 of 10 hot ones.
pub fn parameters(size: Size) -> Parameters {
    Parameters {
        records: size.records(1_000_000),
        record_bytes: 128,
        distribution: Distribution::Zipfian { theta: 0.99 },
        ops_per_txn: 100,
        writes_per_txn: 0,
        read_only: 1.0,
        hot_records: 10,
        hot_ops: 1,
        ..Parameters::default()
    }
}

const PAPERS: &str = "Calvin as in the papers, locked reads";
pub const ORDERED: &str = "Calvin, locked reads";
pub const SNAPSHOT: &str = "PaxFlow, snapshot reads";

/// Table 1: the paper's settings, and those of the runs.
fn table_1(measured: &Measured) -> Table {
    let mut table = Table::new("Table 1: the settings").text_columns(["parameter"]);
    table = table.number_columns(["paper", "these runs"]);
    let Some((_, _, run)) = measured.runs.first() else { return table };
    let percent = |share: String| share.parse().map_or(share, |share: f64| format!("{:.0}%", share * 100.0));
    for (name, paper, ours) in [
        ("Transactions per batch", "2,000", format!("at most {}", run.clients)),
        ("RO transactions", "100%", percent(run.param("read_only"))),
        ("Operations per transaction", "100", run.param("ops_per_txn")),
        ("Hot records", "10", run.param("hot_records")),
        ("Hot records of a transaction", "1 (the public code)", run.param("hot_ops")),
        ("Skew", "0.99", run.param("theta")),
        ("Bytes of a record", "128 (the public code)", run.param("record_bytes")),
        ("Total records in database", "1,000,000", run.param("records")),
    ] {
        table.row([Cell::text(name), Cell::number(paper), Cell::number(ours)]);
    }
    table
}

/// The ratio of two engines: by the clock, by processor time, and with many cores.
struct Ratios {
    clock: Option<f64>,
    cpu: Option<f64>,
    /// X(8) and X(36), as paxflow.md asks for.
    modelled: Option<[f64; 2]>,
}

impl Ratios {
    fn of(measured: &Measured, over: &str, under: &str, threads: f64) -> Ratios {
        let clock = |line| measured.clock(line).at(threads);
        let [ours, theirs] = [over, under].map(|line| measured.demands(line, threads));
        let is_known = ours.sum_us() > 0.0 && theirs.sum_us() > 0.0;
        let by = |cores: f64| ours.txn_per_s(cores) / theirs.txn_per_s(cores);
        Ratios {
            clock: clock(over).zip(clock(under)).map(|(ours, theirs)| ours / theirs),
            cpu: is_known.then(|| theirs.sum_us() / ours.sum_us()),
            modelled: is_known.then(|| [by(8.0), by(36.0)]),
        }
    }

    /// The ratios that were measured.
    fn text(&self) -> String {
        format!("{} by the clock, {} by processor time", times(self.clock), times(self.cpu))
    }

    /// The ratios that are extrapolated.
    fn extrapolated(&self) -> String {
        let [eight, many] = [0, 1].map(|i| times(self.modelled.map(|ratios| ratios[i])));
        format!("{eight} by X(8), {many} by X(36)")
    }
}

fn times(ratio: Option<f64>) -> String {
    or_not(ratio, |ratio| format!("{ratio:.1} x"))
}

fn of_paxflow(measured: &Measured, under: &str) -> Ratios {
    Ratios::of(measured, SNAPSHOT, under, measured.last_x(ORDERED))
}

/// Figure 2 with Table 1: read-only transactions through the lock manager, and on snapshots.
pub static FIGURE_2: Experiment = Experiment {
    title: "Read-only YCSB on one node",
    subtitle: "100 reads a transaction, 1 of them of 10 hot records, and nothing else",
    lines: |_| {
        vec![
            Line::node(PAPERS, 1).reading(Reads::Ordered).by("calvin-paper"),
            Line::node(ORDERED, 1).reading(Reads::Ordered),
            Line::node(SNAPSHOT, 1).reading(Reads::Previous),
        ]
    },
    setting: |size, _, _| ycsb(parameters(size)),
    with_ceiling: true,
    paper: &[
        ("Calvin", "3.20 K txn/s on 72 logical cores (section 4)", |m| {
            let cores = m.last_x(ORDERED);
            let [by_manager, by_lock] = [PAPERS, ORDERED].map(|line| rate_at(&m.clock(line), cores));
            format!(
                "{by_manager} on {cores} cores with one lock thread, {by_lock} with locks divided among them"
            )
        }),
        ("PaxFlow", "13.7 K txn/s on 72 logical cores (section 4)", |m| on_cores(m, SNAPSHOT)),
        ("PaxFlow over Calvin, one lock thread", "4.3 x (section 4)", |m| of_paxflow(m, PAPERS).text()),
        ("PaxFlow over our own locked reads", "none", |m| of_paxflow(m, ORDERED).text()),
    ],
    extrapolations: &[
        ("PaxFlow over Calvin, one lock thread", "4.3 x (section 4)", |m| {
            of_paxflow(m, PAPERS).extrapolated()
        }),
        ("PaxFlow over our own locked reads", "none", |m| of_paxflow(m, ORDERED).extrapolated()),
    ],
    log: Logging::PAXFLOW,
    shapes: |m| {
        let cores = m.last_x(ORDERED);
        let share = m.series(SNAPSHOT, |run| run.share_of_ceiling.unwrap_or(f64::NAN)).at(cores);
        let must = "PaxFlow over Calvin with one lock thread, by the clock: 4.3 times";
        let own = of_paxflow(m, ORDERED).clock;
        vec![
            Shape::band(must, PAXFLOW / CALVIN, BAND, of_paxflow(m, PAPERS).clock),
            Shape::at_least("reads on snapshots do no less than our own locked reads", own, 1.0).of_ours(),
            Shape::at_least("reads on snapshots do at least 0.6 of plain accesses", share, 0.6).of_ours(),
        ]
    },
    notes: &[
        "The paper's Calvin has one lock thread, about 320 K locks and releases a second, through which every read goes; so \
         has the engine calvin-paper, whose lock manager's demand is taken as that of one thread. Our own Calvin has none: a \
         core owns its records and their locks, and a transaction that finds all of them free runs in one call and takes \
         none. The ratio to our own locked reads is the gain of the idea itself.",
        "2,000 clients with one transaction each under way make batches of up to 2,000, the paper's; a batch that \
         the pipeline can take is closed earlier. The reply is a checksum of all that was read.",
    ],
    more: |figure, m, summary| {
        let references = [("the paper's Calvin: 3.2 K", CALVIN), ("the paper's PaxFlow: 13.7 K", PAXFLOW)];
        one_node(figure, m, &references, summary);
        summary.tables.push(table_1(m));
    },
    ..Experiment::PLAIN
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::testing;
    use crate::report::Run;

    fn run(line: &str, rate: f64, cpu: &[(&str, f64)]) -> (String, f64, Run) {
        let cpu = cpu.iter().map(|(part, us)| ((*part).to_owned(), *us)).collect();
        (line.to_owned(), 2.0, Run { cpu_us_per_txn: cpu, ..testing::run("e", 1, rate, true) })
    }

    #[test]
    fn a_lock_manager_holds_up_many_cores_and_the_ratio_says_so() {
        let runs = vec![
            run(PAPERS, 10e3, &[("lock-manager", 50.0), ("shard", 50.0)]),
            run(SNAPSHOT, 40e3, &[("shard", 20.0)]),
        ];
        let measured = Measured { runs, ..Measured::default() };
        let ratios = Ratios::of(&measured, SNAPSHOT, PAPERS, 2.0);
        assert_eq!(ratios.text(), "4.0 x by the clock, 5.0 x by processor time");
        assert_eq!(ratios.extrapolated(), "20.0 x by X(8), 90.0 x by X(36)");
        // The lock manager is one thread, so that growth ends; what has no such thread grows on.
        let summary = FIGURE_2.summary(&measured);
        let ends: Vec<_> =
            summary.extrapolations.iter().filter(|beside| beside.what.contains("growth ends")).collect();
        assert_eq!(ends.len(), 1, "{ends:?}");
        assert_eq!(ends[0].ours, "2: the lock-manager, one thread, is busy");
        assert!(
            Ratios::of(&measured, SNAPSHOT, ORDERED, 2.0).text().starts_with("not measured by the clock")
        );
    }
}
