//! The Q-Store paper's figures of YCSB (qstore.md, section 7), on four nodes with 16 partitions instead of 16 servers.
//!
//! Partitions are runs of hash slots, so the workload is the paper's: which records a transaction uses and in how many
//! partitions does not depend on where these are. A node has four of them.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::contest::{
    AGREEING, CALVIN, CLIENTS, CONTEST, FAILED, LATENCY, MAAT, MVCC, NO_WAIT, NODES, OPERATIONS, QSTORE,
    TIMESTAMP, aborts, aborts_in_order, contended, is_ahead, is_best_agreed, lead, lead_as_papers,
    lead_by_model, operations, ordered, over, over_two_phase, own, own_by_model,
};
use super::experiment::{Experiment, LINEAR, Line, PICTURE, Values};
use super::{Measured, Shape, Size};

/// The paper's partitions, each on a server.
const PARTITIONS: usize = 16;
/// Partitions of a multi-partition transaction.
const PER_TXN: usize = 8;
const OPS: usize = 16;
/// Records of all partitions. How often transactions meet depends on them and on how many are [under way](contest::AGREEING).
const RECORDS: u64 = 640_000;
/// In quick runs there are so many times fewer of both.
const QUICK: u64 = 4;
/// Transactions under way on four nodes of an engine that orders first, where nodes are added: 16 nodes have to commit ten times as
/// many as they have under way before a run says anything.
const ON_SERVERS: usize = CLIENTS / 2;

pub const SUBTITLE: &str = "YCSB, 16 partitions on 4 nodes, half of the transactions on 8 of them, 16 operations of which half are \
                        writes, theta 0, where not swept";

/// The paper's defaults (Table 1), with the records that baselines.md has for few transactions under way.
pub fn defaults(size: Size) -> Parameters {
    Parameters {
        records: size.pick(RECORDS / QUICK, RECORDS),
        record_bytes: 100,
        distribution: Distribution::UNIFORM,
        ops_per_txn: OPS,
        writes_per_txn: OPS / 2,
        partitions: PARTITIONS,
        multi_partition: 0.5,
        partitions_per_txn: PER_TXN,
        ..Parameters::default()
    }
}

/// The paper's defaults for a line, which gets as many transactions under way as the records are for.
fn of_line(size: Size, line: &mut Line) -> Parameters {
    if line.clients == AGREEING {
        line.clients = size.pick(AGREEING / QUICK as usize, AGREEING);
    }
    defaults(size)
}

pub fn ycsb(parameters: Parameters) -> anyhow::Result<Arc<dyn Workload>> {
    Ok(Arc::new(Ycsb::new(parameters)?))
}

const YCSB: Experiment = Experiment { subtitle: SUBTITLE, ..CONTEST };

/// Figure 5: batches.
pub static FIGURE_5: Experiment = Experiment {
    title: "Transactions in a batch",
    lines: ordered,
    plots: &[PICTURE, LATENCY],
    x: ("transactions under way, which is the most that a batch can have", "", LINEAR),
    values: Values::At(&[2_000.0, 5_000.0, 10_000.0, 20_000.0, 40_000.0]),
    setting: |size, clients, line| {
        line.clients = clients as usize;
        ycsb(defaults(size))
    },
    paper: &[
        ("Q-Store over Calvin with 40 K", "22.1 x", |m| lead(m, Some(40_000.0))),
        ("Q-Store over Calvin, best", "22.1 x", |m| lead(m, None)),
    ],
    extrapolations: &[("Q-Store over Calvin with 40 K", "22.1 x", |m| lead_by_model(m, Some(40_000.0)))],
    shapes: |m| {
        vec![
            Shape::rises("Q-Store rises with the batch, or is as high at once", &m.clock(QSTORE), 0.9),
            lead_as_papers(m, "Q-Store over Calvin with 40 K under way", 22.1, Some(40_000.0)),
            is_ahead(m, "Calvin is low: Q-Store is above it throughout"),
        ]
    },
    notes: &[
        "The paper's batches have a fixed size, which is that of all servers together, and as many transactions under way. \
         Ours close as soon as the pipeline can take them, so that what is swept is what is under way: a bound of the \
         batch.",
    ],
    ..YCSB
};

/// Figure 6: skew.
pub static FIGURE_6: Experiment = Experiment {
    title: "Skew",
    lines: contended,
    x: ("theta", "", LINEAR),
    values: Values::At(&[0.0, 0.4, 0.8, 0.9, 0.99]),
    setting: |size, theta, line| {
        ycsb(Parameters { distribution: Distribution::Zipfian { theta }, ..of_line(size, line) })
    },
    extrapolations: &[("Q-Store over Calvin, best", "6 x", |m| lead_by_model(m, None))],
    paper: &[
        ("Q-Store over Calvin, best", "6 x", |m| lead(m, None)),
        ("Q-Store over two-phase commit at high skew", "about 100 x", |m| over_two_phase(m, Some(0.99))),
    ],
    shapes: |m| {
        vec![
            Shape::flat("Calvin is flat: within 30%", &m.clock(CALVIN), 0.3),
            Shape::flat("Q-Store is flat, then drops a little: within 20%", &m.clock(QSTORE), 0.2),
            lead_as_papers(m, "Q-Store over Calvin at best", 6.0, None),
            Shape::falls("NO-WAIT falls with the skew", &m.clock(NO_WAIT), 0.5),
            aborts_in_order(m, &[NO_WAIT, MVCC], 0.99),
        ]
    },
    notes: &[
        "The paper's Calvin is flat because its single sequencer and scheduler threads are busy before any lock is; our \
         own divides that work, so contention for hot records and their warmth in the caches show.",
        "Of the engines that agree on each transaction NO-WAIT, WAIT-DIE and MaaT fall further than the paper's: a refused \
         attempt comes back within 5 ms here, and after half a second there. At theta 0.99 the most popular record has 7% of \
         all operations, so that nearly every attempt meets another one there.",
    ],
    ..YCSB
};

/// Figure 7: multi-partition transactions.
pub static FIGURE_7: Experiment = Experiment {
    title: "Multi-partition transactions",
    x: ("multi-partition transactions", "%", LINEAR),
    values: Values::At(&[0.0, 10.0, 20.0, 50.0, 80.0, 100.0]),
    // So long that the slowest line has answered each of its clients often.
    measure: |size| size.measure() * 2,
    setting: |size, percent, line| {
        ycsb(Parameters { multi_partition: percent / 100.0, ..of_line(size, line) })
    },
    paper: &[("Q-Store over Calvin, best", "10.6 x", |m| lead(m, None))],
    extrapolations: &[("Q-Store over Calvin, best", "10.6 x", |m| lead_by_model(m, None))],
    shapes: |m| {
        vec![
            Shape::flat("Q-Store is flat by processor time: within 15%", &m.cpu(QSTORE), 0.15),
            Shape::falls(
                "Calvin falls with the share of multi-partition transactions",
                &m.clock(CALVIN),
                0.9,
            ),
            lead_as_papers(m, "Q-Store over Calvin at best", 10.6, None),
        ]
    },
    notes: &[
        "A multi-partition transaction uses 8 of 16 partitions, which lie on 4 nodes: nearly all of them, on average.",
        "A batch's messages do not depend on the share, but what is in them does: here every node is sent its share \
         of a transaction, and the one that replies is sent the answers.",
    ],
    ..YCSB
};

/// Figure 8: updates.
pub static FIGURE_8: Experiment = Experiment {
    title: "Updates",
    lines: contended,
    x: ("update operations", "%", LINEAR),
    values: Values::At(&[0.0, 5.0, 20.0, 50.0, 80.0, 95.0]),
    setting: |size, percent, line| {
        let writes_per_txn = (percent / 100.0 * OPS as f64).round() as usize;
        ycsb(Parameters { writes_per_txn, ..of_line(size, line) })
    },
    extrapolations: &[("Q-Store over Calvin, best", "5.9 x", |m| lead_by_model(m, None))],
    paper: &[
        ("Q-Store over Calvin, best", "5.9 x", |m| lead(m, None)),
        ("Q-Store over MVCC, best", "17.1 x", |m| over(m, MVCC, None)),
        ("Q-Store over NO-WAIT, best", "more than 17.1 x", |m| over_two_phase(m, None)),
        ("aborts of NO-WAIT, MaaT, TIMESTAMP, MVCC at 95%", "41, 19, 7, 6%", |m| aborts(m, 95.0)),
    ],
    shapes: |m| {
        vec![
            Shape::flat("Calvin is flat: within 30%", &m.clock(CALVIN), 0.3),
            Shape::flat("Q-Store is flat: within 10%", &m.clock(QSTORE), 0.1),
            lead_as_papers(m, "Q-Store over Calvin at best", 5.9, None),
            aborts_in_order(m, &[NO_WAIT, MAAT, TIMESTAMP, MVCC], 95.0),
            is_best_agreed(m, MVCC, Some(95.0)),
        ]
    },
    notes: &[
        "Writes of a transaction are whole operations of 16: 5% is 1, 95% is 15.",
        "Deneva's engines sleep half a second after each abort, which keeps their aborts apart from each other; ours try again \
         within 5 ms, but for the line with its backoff.",
        "TIMESTAMP and MVCC abort far less than the paper's 7 and 6%: an attempt is too late if one with a later stamp has \
         been there first, and between its stamp and its accesses there is a round of messages here, where 10,000 transactions \
         wait at each of the paper's servers.",
        "The five engines are within a tenth of each other where something is written: what a \
         transaction costs is its messages and its log records (some 9 and 4), each synced before it is answered. Deneva has no \
         log, so Q-Store's lead is larger here.",
    ],
    ..YCSB
};

/// Figure 9: operations, each in a partition of its own.
pub static FIGURE_9: Experiment = Experiment {
    title: "Operations per transaction",
    x: ("operations per transaction, each on its own partition", "", LINEAR),
    values: Values::At(&[2.0, 4.0, 8.0, 12.0, 16.0]),
    setting: |size, ops, line| {
        let ops = ops as usize;
        ycsb(Parameters {
            ops_per_txn: ops,
            writes_per_txn: ops / 2,
            partitions_per_txn: ops,
            ..of_line(size, line)
        })
    },
    plots: &[OPERATIONS, LATENCY, FAILED],
    extrapolations: &[("Q-Store over Calvin at 16", "12 x", |m| lead_by_model(m, Some(16.0)))],
    paper: &[
        ("Q-Store, 16 operations", "nearly 16 M op/s", |m| own(m, 16.0, operations)),
        ("Q-Store over Calvin at 16", "12 x", |m| lead(m, Some(16.0))),
        ("Q-Store over NO-WAIT at 16", "20 x", |m| over_two_phase(m, Some(16.0))),
    ],
    shapes: |m| {
        vec![
            Shape::rises(
                "Q-Store does more operations in larger transactions: op/s at 16 at least 1.5 x those at 2",
                &operations(m, QSTORE),
                1.5,
            ),
            Shape::grows_at_most(
                "Calvin does not scale with larger transactions: op/s at 16 less than 3 x those at 2",
                &operations(m, CALVIN),
                3.0,
            ),
            lead_as_papers(m, "Q-Store over Calvin with 16 operations", 12.0, Some(16.0)),
        ]
    },
    ..YCSB
};

/// Figure 10: partitions.
pub static FIGURE_10: Experiment = Experiment {
    title: "Partitions per transaction",
    x: ("partitions per transaction of 16 operations", "", LINEAR),
    values: Values::At(&[2.0, 4.0, 8.0, 12.0, 16.0]),
    setting: |size, partitions, line| {
        ycsb(Parameters { partitions_per_txn: partitions as usize, ..of_line(size, line) })
    },
    paper: &[("Q-Store, flat", "about 1 M txn/s", |m| own(m, 8.0, Measured::clock))],
    extrapolations: &[("Q-Store, flat", "about 1 M txn/s", |m| own_by_model(m, 8.0))],
    shapes: |m| {
        vec![
            Shape::flat("Q-Store is flat: within 15%", &m.clock(QSTORE), 0.15),
            Shape::falls("Calvin falls with the number of partitions", &m.clock(CALVIN), 0.95),
        ]
    },
    notes: &[
        "Beyond four partitions a transaction is on all four nodes, mostly.",
        "Q-Store's transaction costs 8.7 us of processor time on 4 partitions and 10.4 on 16: with its nodes grow its messages (network \
         and exchange 2.1 and 2.7 us) and the work of its shards (3.8 and 4.5).",
    ],
    ..YCSB
};

/// Figure 11: servers.
pub static FIGURE_11: Experiment = Experiment {
    title: "Servers",
    subtitle: "YCSB, a partition on each node, half of the transactions on all of them, 16 operations of which half are writes",
    x: ("nodes", "", LINEAR),
    values: Values::At(&[2.0, 4.0, 8.0, 16.0]),
    setting: |size, nodes, line| {
        let Parameters { records, .. } = of_line(size, line);
        line.grid.nodes = nodes as u16;
        let all = if line.clients == CLIENTS { ON_SERVERS } else { line.clients };
        line.clients = all * nodes as usize / usize::from(NODES);
        ycsb(Parameters {
            records: records * nodes as u64 / u64::from(NODES),
            partitions: nodes as usize,
            partitions_per_txn: nodes as usize,
            ..defaults(size)
        })
    },
    paper: &[
        ("Q-Store, 16 servers", "more than 1 M txn/s", |m| own(m, 16.0, Measured::clock)),
        ("Q-Store over Calvin at 16", "only in the image", |m| lead(m, Some(16.0))),
    ],
    extrapolations: &[
        ("Q-Store, 16 servers", "more than 1 M txn/s", |m| own_by_model(m, 16.0)),
        ("Q-Store over Calvin at 16", "only in the image", |m| lead_by_model(m, Some(16.0))),
    ],
    shapes: |m| {
        // All nodes share the cores here, so what grows is what a second of processor time does less and less of.
        let must = "Q-Store is linear: a second of processor time does no less on 16 nodes than on 2, within a third";
        vec![Shape::flat(must, &m.cpu(QSTORE), 1.0 / 3.0), is_ahead(m, "Q-Store is above Calvin throughout")]
    },
    notes: &[
        "By the clock more nodes cannot do more here: all of them share one machine. So growth is read off the processor \
         time of a transaction, which stays the same where throughput is linear.",
        "A transaction costs more with more nodes: half of the transactions are on all nodes, and each of those plans and runs its part. Of \
         Q-Store's processor time (6 us on 2 nodes, 47 on 16) that of shards grows from 3 to 13 us, that of messages (network and \
         exchange) from 1 to 25.",
        "Records and transactions under way grow with the nodes, so that attempts come to nothing nearly as often on 2 nodes as on 16 \
         (NO-WAIT's: 38 and 49%). Half as many transactions are under way of an engine that orders first as in the other figures.",
    ],
    ..YCSB
};
