//! The options of the family's engines, each written down once. An engine says which of them it has.
//!
//! [`Knobs`] is the one place where the family reads them. The names are those of the papers and of the flags that were
//! there before there was `--option`.

use ordain_model::{
    Cascade, CheckpointMode, Execution, Isolation, Micros, Need, OptionInfo, OptionKind, OptionValue,
    Options, Reads,
};

/// What most options are: a flag, of each node on its own, that stays as it is while the node runs.
const FLAG: OptionInfo = OptionInfo {
    name: "",
    value_name: "",
    doc: "",
    kind: OptionKind::Bool,
    default: OptionValue::Bool(false),
    is_flag: true,
    is_identity: false,
    is_of_cluster: false,
    changes_at_run_time: false,
    needs: None,
};

/// How transactions that only read are run.
pub static READS: OptionInfo = OptionInfo {
    name: "reads",
    value_name: "HOW",
    doc: "How transactions that only read are run. `ordered`: in the sequence, like all others. Else on a snapshot: \
          `session` includes all that the connection has seen, `previous` is the state at the end of the epoch \
          before the open one, `strict` includes all that any client was answered before the request",
    kind: OptionKind::Name { names: &Reads::NAMES, wrong: Reads::WRONG },
    default: OptionValue::Name("ordered"),
    ..FLAG
};

/// How the state of a checkpoint is kept while transactions go on.
pub static CHECKPOINT_MODE: OptionInfo = OptionInfo {
    name: "checkpoint-mode",
    value_name: "HOW",
    doc: "How the state of a checkpoint is kept while transactions go on. `multiversion`: replaced contents are \
          kept beside the new ones. `zigzag`: a changed record has two copies until it is captured. `naive`: one \
          replica executes nothing until its state is written, and clients use another one",
    kind: OptionKind::Name { names: &CheckpointMode::NAMES, wrong: CheckpointMode::WRONG },
    default: OptionValue::Name("multiversion"),
    ..FLAG
};

/// How what depends on verdicts of other shards is executed.
pub static EXECUTION: OptionInfo = OptionInfo {
    name: "execution",
    value_name: "HOW",
    doc: "How a transaction is executed that may abort by the verdict of another thread or node. `conservative`: \
          its writes are visible once all verdicts are known. `speculative`: they are visible at once; after an \
          abort they are undone, and transactions that used them are executed again. `auto`: the faster of the two, \
          measured batch by batch. The results are the same",
    kind: OptionKind::Name { names: &Execution::NAMES, wrong: Execution::WRONG },
    default: OptionValue::Name("conservative"),
    ..FLAG
};

/// What becomes of what was executed on what is undone.
pub static CASCADE: OptionInfo = OptionInfo {
    name: "cascade",
    value_name: "HOW",
    doc: "The fate of a transaction that was executed speculatively on writes of another one that then aborted. \
          `repair`: it is executed again, and the results are those of one transaction after the other. `abort`: it \
          is answered TXNABORT, as in the paper, and its client may ask again",
    kind: OptionKind::Name { names: &Cascade::NAMES, wrong: Cascade::WRONG },
    default: OptionValue::Name("repair"),
    needs: Some(Need {
        value: "abort",
        other: "execution",
        values: &["speculative", "auto"],
        why: "nothing is executed speculatively",
    }),
    ..FLAG
};

/// What transactions see of each other.
pub static ISOLATION: OptionInfo = OptionInfo {
    name: "isolation",
    value_name: "LEVEL",
    doc: "What transactions see of each other. `serializable`: the results are those of one transaction after the \
          other. `read-committed`: a record that a transaction only reads is seen as at the end of the epoch before \
          its own, without waiting; records that it writes or watches are as with `serializable`",
    kind: OptionKind::Name { names: &Isolation::NAMES, wrong: Isolation::WRONG },
    default: OptionValue::Name("serializable"),
    is_identity: true,
    is_of_cluster: true,
    ..FLAG
};

/// Whether slots move between the threads of a node.
pub static BALANCE: OptionInfo = OptionInfo {
    name: "balance",
    value_name: "BOOL",
    doc: "Move slots that are used most, with their records, to threads that have less to do",
    kind: OptionKind::Bool,
    default: OptionValue::Bool(true),
    ..FLAG
};

/// How many batches may be planned while one is executed.
pub static PLAN_AHEAD: OptionInfo = OptionInfo {
    name: "plan-ahead",
    value_name: "N",
    doc: "Most batches that are closed, logged and planned while one is executed; they are kept in memory",
    kind: OptionKind::Integer { unit: "batches", min: 0, max: 64 },
    default: OptionValue::Integer(3),
    ..FLAG
};

/// How long an open batch waits for more.
pub static LINGER_US: OptionInfo = OptionInfo {
    name: "linger-us",
    value_name: "US",
    doc: "Time, in microseconds, that a batch waits for more transactions although it could be closed: batches \
          grow, and latency with them",
    kind: OptionKind::Integer { unit: "microseconds", min: 0, max: u64::MAX },
    default: OptionValue::Integer(0),
    ..FLAG
};

/// Most transactions under way in a shard.
pub static WINDOW: OptionInfo = OptionInfo {
    name: "window",
    value_name: "N",
    doc: "Most transactions under way in a shard; further ones wait in their batches",
    kind: OptionKind::Integer { unit: "transactions", min: 1, max: 65_536 },
    default: OptionValue::Integer(2000),
    is_flag: false,
    ..FLAG
};

/// What the deterministic family is told by options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knobs {
    /// How transactions that only read are run.
    pub reads: Reads,
    /// How the state of a checkpoint is kept.
    pub checkpoint_mode: CheckpointMode,
    /// How what depends on verdicts is executed.
    pub execution: Execution,
    /// What becomes of what was executed on what is undone.
    pub cascade: Cascade,
    /// What transactions see of each other.
    pub isolation: Isolation,
    /// Whether slots move between the threads of a node.
    pub balance: bool,
    /// How many batches may be planned while one is executed.
    pub plan_ahead: u64,
    /// How long an open batch waits for more.
    pub linger: Micros,
    /// Most transactions under way in a shard.
    pub window: usize,
}

impl Knobs {
    /// Reads the options.
    pub fn of(options: &Options) -> Knobs {
        Knobs {
            reads: options.choice(&READS),
            checkpoint_mode: options.choice(&CHECKPOINT_MODE),
            execution: options.choice(&EXECUTION),
            cascade: options.choice(&CASCADE),
            isolation: options.choice(&ISOLATION),
            balance: options.is_on(&BALANCE),
            plan_ahead: options.number(&PLAN_AHEAD),
            linger: Micros(options.number(&LINGER_US)),
            window: options.number(&WINDOW) as usize,
        }
    }
}
