//! The Q-Store paper's figures of YCSB (qstore.md, section 7), on four nodes with 16 partitions instead of 16 servers.
//!
//! Partitions are runs of hash slots, so the workload is the paper's: which records a transaction uses and in how many
//! partitions does not depend on where these are. A node has four of them.

use std::sync::Arc;

use ordain_workload::Workload;
use ordain_workload::choice::Distribution;
use ordain_workload::ycsb::{Parameters, Ycsb};

use super::contest::{CALVIN, CLIENTS, NODES, Number, OP, QSTORE, Setting, Sweep, TWO_PHASE, TXN};
use super::{Shape, Size};
use crate::plot::Scale;

/// How many partitions the paper has, each on a server.
const PARTITIONS: usize = 16;
/// How many of them a multi-partition transaction uses.
const PER_TXN: usize = 8;
const OPS: usize = 16;

pub(super) const SUBTITLE: &str = "YCSB, 16 partitions on 4 nodes, half of the transactions on 8 of them, 16 operations of which half are \
                        writes, theta 0, where not swept";

/// The paper's defaults (Table 1), with the records that qstore.md has for four nodes of one machine.
fn defaults(size: Size) -> Parameters {
    Parameters {
        records: size.records(1_000_000),
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

fn ycsb(parameters: Parameters) -> anyhow::Result<Setting> {
    Ok(Setting::of(Arc::new(Ycsb::new(parameters)?)))
}

/// What the figures sweep one parameter of.
pub(super) fn workload(size: Size) -> anyhow::Result<Arc<dyn Workload>> {
    Ok(Arc::new(Ycsb::new(defaults(size))?))
}

/// Figure 5: batches.
pub static FIGURE_5: Sweep = Sweep {
    title: "Transactions in a batch",
    subtitle: SUBTITLE,
    x: ("transactions under way, which is the most that a batch can have", "", Scale::Linear),
    values: &[2_000.0, 5_000.0, 10_000.0, 20_000.0, 40_000.0],
    setting: |size, clients| Ok(Setting { clients: clients as usize, ..ycsb(defaults(size))? }),
    y: TXN,
    paper: &[
        ("Q-Store over Calvin with 40 K", "22.1 x", Number::Lead(Some(40_000.0))),
        ("Q-Store over Calvin, best", "22.1 x", Number::Lead(None)),
    ],
    shapes: |contest| {
        vec![
            Shape::changes(
                "Q-Store rises with the batch, or is as high at once",
                &contest.clock(QSTORE),
                0.9,
                f64::INFINITY,
            ),
            contest.is_ahead("Calvin is low: Q-Store is above it throughout"),
        ]
    },
    notes: &[
        "The paper's batches have a fixed size, which is that of all servers together, and as many transactions under way. \
         Ours close as soon as the pipeline can take them, so that what is swept is what is under way: a bound of the \
         batch.",
    ],
};

/// Figure 6: skew.
pub static FIGURE_6: Sweep = Sweep {
    title: "Skew",
    subtitle: SUBTITLE,
    x: ("theta", "", Scale::Linear),
    values: &[0.0, 0.4, 0.8, 0.9, 0.99],
    setting: |size, theta| {
        ycsb(Parameters { distribution: Distribution::Zipfian { theta }, ..defaults(size) })
    },
    y: TXN,
    paper: &[
        ("Q-Store over Calvin, best", "6 x", Number::Lead(None)),
        ("Q-Store over two-phase commit at high skew", "about 100 x", TWO_PHASE),
    ],
    shapes: |contest| {
        vec![
            Shape::flat("Calvin is flat: within 30%", &contest.clock(CALVIN), 0.3),
            Shape::flat("Q-Store is flat, then drops a little: within 20%", &contest.clock(QSTORE), 0.2),
        ]
    },
    notes: &[
        "The paper's Calvin is flat because its single sequencer and scheduler threads are busy before any lock is; our \
         own divides that work, so contention for hot records and their warmth in the caches show.",
    ],
};

/// Figure 7: multi-partition transactions.
pub static FIGURE_7: Sweep = Sweep {
    title: "Multi-partition transactions",
    subtitle: SUBTITLE,
    x: ("multi-partition transactions", "%", Scale::Linear),
    values: &[0.0, 10.0, 20.0, 50.0, 80.0, 100.0],
    setting: |size, percent| ycsb(Parameters { multi_partition: percent / 100.0, ..defaults(size) }),
    y: TXN,
    paper: &[("Q-Store over Calvin, best", "10.6 x", Number::Lead(None))],
    shapes: |contest| {
        vec![
            Shape::flat("Q-Store is flat by processor time: within 15%", &contest.cpu(QSTORE), 0.15),
            Shape::changes(
                "Calvin falls with the share of multi-partition transactions",
                &contest.clock(CALVIN),
                0.0,
                0.9,
            ),
        ]
    },
    notes: &[
        "A multi-partition transaction uses 8 of 16 partitions, which lie on 4 nodes: nearly all of them, on average.",
        "A batch's messages do not depend on the share, but what is in them does: here every node is told what it \
         has to do of a transaction, and the one that replies is told the answers.",
    ],
};

/// Figure 8: updates.
pub static FIGURE_8: Sweep = Sweep {
    title: "Updates",
    subtitle: SUBTITLE,
    x: ("update operations", "%", Scale::Linear),
    values: &[0.0, 5.0, 20.0, 50.0, 80.0, 95.0],
    setting: |size, percent| {
        let writes_per_txn = (percent / 100.0 * OPS as f64).round() as usize;
        ycsb(Parameters { writes_per_txn, ..defaults(size) })
    },
    y: TXN,
    paper: &[
        ("Q-Store over Calvin, best", "5.9 x", Number::Lead(None)),
        ("Q-Store over MVCC, best", "17.1 x", TWO_PHASE),
        ("aborts of NO-WAIT, MaaT, TIMESTAMP, MVCC at 95%", "41, 19, 7, 6%", TWO_PHASE),
    ],
    shapes: |contest| {
        vec![
            Shape::flat("Calvin is flat: within 30%", &contest.clock(CALVIN), 0.3),
            Shape::flat("Q-Store is flat: within 10%", &contest.clock(QSTORE), 0.1),
        ]
    },
    notes: &["Writes of a transaction are whole operations of 16: 5% is 1, 95% is 15."],
};

/// Figure 9: operations, each in a partition of its own.
pub static FIGURE_9: Sweep = Sweep {
    title: "Operations per transaction",
    subtitle: SUBTITLE,
    x: ("operations per transaction, each on its own partition", "", Scale::Linear),
    values: &[2.0, 4.0, 8.0, 12.0, 16.0],
    setting: |size, ops| {
        let ops = ops as usize;
        ycsb(Parameters {
            ops_per_txn: ops,
            writes_per_txn: ops / 2,
            partitions_per_txn: ops,
            ..defaults(size)
        })
    },
    y: OP,
    paper: &[
        ("Q-Store, 16 operations", "nearly 16 M op/s", Number::Own(16.0)),
        ("Q-Store over Calvin at 16", "12 x", Number::Lead(Some(16.0))),
        ("Q-Store over NO-WAIT at 16", "20 x", TWO_PHASE),
    ],
    shapes: |contest| {
        vec![
            Shape::changes(
                "Q-Store does more operations in larger transactions: op/s at 16 at least 1.5 x those at 2",
                &contest.clock(QSTORE),
                1.5,
                f64::INFINITY,
            ),
            Shape::changes(
                "Calvin does not scale with larger transactions: op/s at 16 less than 3 x those at 2",
                &contest.clock(CALVIN),
                0.0,
                3.0,
            ),
        ]
    },
    notes: &[],
};

/// Figure 10: partitions.
pub static FIGURE_10: Sweep = Sweep {
    title: "Partitions per transaction",
    subtitle: SUBTITLE,
    x: ("partitions per transaction of 16 operations", "", Scale::Linear),
    values: &[2.0, 4.0, 8.0, 12.0, 16.0],
    setting: |size, partitions| {
        ycsb(Parameters { partitions_per_txn: partitions as usize, ..defaults(size) })
    },
    y: TXN,
    paper: &[("Q-Store, flat", "about 1 M txn/s", Number::Own(8.0))],
    shapes: |contest| {
        vec![
            Shape::flat("Q-Store is flat: within 15%", &contest.clock(QSTORE), 0.15),
            Shape::changes("Calvin falls with the number of partitions", &contest.clock(CALVIN), 0.0, 0.95),
        ]
    },
    notes: &["Beyond four partitions a transaction is on all four nodes, mostly."],
};

/// Figure 11: servers.
pub static FIGURE_11: Sweep = Sweep {
    title: "Servers",
    subtitle: "YCSB, a partition on each node, half of the transactions on all of them, 16 operations of which half are writes",
    x: ("nodes", "", Scale::Linear),
    values: &[2.0, 4.0, 8.0, 16.0],
    setting: |size, nodes| {
        let parameters =
            Parameters { partitions: nodes as usize, partitions_per_txn: nodes as usize, ..defaults(size) };
        let clients = CLIENTS * nodes as usize / usize::from(NODES);
        Ok(Setting { nodes: nodes as u16, clients, ..ycsb(parameters)? })
    },
    y: TXN,
    paper: &[
        ("Q-Store, 16 servers", "more than 1 M txn/s", Number::Own(16.0)),
        ("Q-Store over Calvin at 16", "only in the image", Number::Lead(Some(16.0))),
    ],
    shapes: |contest| {
        vec![
            Shape::changes(
                "Q-Store grows with the servers, by X(8): at 16 at least 4 x what 2 do",
                &contest.model(QSTORE),
                4.0,
                f64::INFINITY,
            ),
            Shape::changes(
                "Calvin hardly grows, by X(8): at 16 less than 3 x what 2 do",
                &contest.model(CALVIN),
                0.0,
                3.0,
            ),
        ]
    },
    notes: &[
        "By the clock more nodes cannot do more here: all of them share one machine. The model is what grows.",
    ],
};
