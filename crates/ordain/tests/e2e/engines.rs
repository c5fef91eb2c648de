//! Every engine as a cluster of real processes while things go wrong: a node is killed, one stands still for longer than it
//! takes to elect another, links are lost, held and cut. Clients append, read and move money meanwhile, with sessions and
//! without; what they saw is judged at the level that the engine promises, and all replicas have the same in the end.
//!
//! An engine, or a way to run one, joins by a row of [`ROWS`].

use ordain_checker::Level;
use rustix::process::Signal;

use crate::faults::grid::Grid;
use crate::faults::load::{Load, Promise, promised_under_load};
use crate::support::{Expect, Reply};

/// An engine as it is started, and its promise.
struct Row {
    /// Lines of the cluster's file.
    settings: &'static str,
    partitions: usize,
    replicas: usize,
    level: Level,
    cascades: bool,
    /// What was answered shortly before a primary was given up may be lost with it.
    loses: bool,
}

const fn row(settings: &'static str, (partitions, replicas): (usize, usize), level: Level) -> Row {
    Row { settings, partitions, replicas, level, cascades: false, loses: false }
}

/// A test for each row: its name, and the row.
macro_rules! rows {
    ($($name:ident: $row:expr;)*) => {
        $(
            #[test]
            fn $name() {
                go_wrong(&$row);
            }
        )*
    };
}

rows! {
    calvin: row("engine = \"calvin\"", (2, 3), Level::StrictSerializable);
    calvin_previous: row("engine = \"calvin\"\nreads = \"previous\"", (1, 3), Level::SnapshotReads);
    calvin_paper: row("engine = \"calvin-paper\"", (1, 3), Level::StrictSerializable);
    paxflow_session: row("engine = \"paxflow\"", (2, 3), Level::SessionReads);
    paxflow_previous: row("engine = \"paxflow\"\nreads = \"previous\"", (2, 1), Level::SnapshotReads);
    paxflow_strict: row("engine = \"paxflow\"\nreads = \"strict\"", (1, 3), Level::StrictSerializable);
    qstore_speculative: row(
        "engine = \"qstore\"\nexecution = \"speculative\"",
        (2, 3),
        Level::StrictSerializable,
    );
    qstore_conservative: row(
        "engine = \"qstore\"\nexecution = \"conservative\"",
        (2, 1),
        Level::StrictSerializable,
    );
    qstore_cascading: Row {
        cascades: true,
        ..row(
            "engine = \"qstore\"\nexecution = \"speculative\"\ncascade = \"abort\"",
            (1, 3),
            Level::StrictSerializable,
        )
    };
    qstore_session: row("engine = \"qstore\"\nreads = \"session\"", (1, 3), Level::SessionReads);
    qstore_read_committed: row(
        "engine = \"qstore\"\nisolation = \"read-committed\"",
        (2, 1),
        Level::ReadCommitted,
    );
    no_wait: row("engine = \"no-wait\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::StrictSerializable);
    no_wait_alone: row("engine = \"no-wait\"", (2, 1), Level::StrictSerializable);
    wait_die: row("engine = \"wait-die\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::StrictSerializable);
    timestamp: row("engine = \"timestamp\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::SessionSerializable);
    mvcc: row("engine = \"mvcc\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::SessionSerializable);
    maat: row("engine = \"maat\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::SessionSerializable);
    occ_2pc: row("engine = \"occ-2pc\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::StrictSerializable);
    walter: row("engine = \"walter\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::SessionParallelSnapshot);
    fwkv: row("engine = \"fwkv\"\ncheckpoint-log-bytes = 20000", (2, 3), Level::FreshParallelSnapshot);
    calvin_async: Row {
        loses: true,
        ..row("engine = \"calvin\"\nreplication = \"async\"", (2, 2), Level::StrictSerializable)
    };
    qstore_async: Row {
        loses: true,
        ..row("engine = \"qstore\"\nreplication = \"async\"", (1, 3), Level::StrictSerializable)
    };
}

/// Transactions that are answered between two faults.
const STRETCH: u64 = 60;

fn go_wrong(row: &Row) {
    let mut grid = Grid::wired(row.partitions, row.replicas, row.settings);
    let promise = Promise { level: row.level, cascades: row.cascades, loses: row.loses };
    let doors = grid.doors();
    promised_under_load(promise, &doors, 51, |load| {
        load.trouble(&mut grid, STRETCH, |grid, load| {
            let leader = grid.leader(0);
            grid.kill(leader);
            work_on(grid, load);
            grid.restart(leader);
        });
        if row.replicas > 1 && !row.loses {
            load.trouble(&mut grid, STRETCH, |grid, load| {
                let follower = (grid.leader(0) + grid.partitions) % grid.len();
                grid.kill(follower);
                work_on(grid, load);
                grid.restart(follower);
            });
        }
        load.trouble(&mut grid, STRETCH, |grid, load| {
            let (frozen, other) = (grid.leader(0), (grid.leader(0) + 1) % grid.len());
            grid.signal(frozen, Signal::STOP);
            work_on(grid, load);
            grid.await_loss(frozen, other);
            grid.signal(frozen, Signal::CONT);
        });
        load.trouble(&mut grid, STRETCH, lose_a_node);
        load.trouble(&mut grid, STRETCH, hold_a_link);
        // In the middle of whatever it is, again and again.
        load.trouble(&mut grid, STRETCH, |grid, load| {
            let (alone, others) = alone_and_others(grid);
            for _ in 0..5 {
                load.advance(STRETCH / 4);
                others.iter().for_each(|id| grid.wires().reset(alone, *id));
            }
        });
        load.calm(&grid, STRETCH);
    });
    grid.await_ready();
    grid.await_equal_digests();
    if grid.replicas > 1 {
        grid.await_equal_members();
    }
    grid.stop();
}

/// Where every partition agrees on its own, one that has lost its majority stops what touches it and nothing else. What it was
/// asked for meanwhile has no effect, and leaves nothing locked.
#[test]
fn a_partition_without_a_majority_stops_only_what_touches_it() {
    for engine in ["no-wait", "wait-die"] {
        let mut grid = Grid::start(2, 3, &format!("engine = \"{engine}\""));
        let (here, there) = (grid.key_in(0, "k"), grid.key_in(1, "k"));
        let mut client = grid.client(grid.leader(0));
        assert_eq!(client.insist(&format!("MSET {here} 1 {there} 1")), Reply::ok());
        let members = (0..grid.len()).filter(|id| id % grid.partitions == 1);
        let away: Vec<usize> = members.take(2).collect();
        away.iter().for_each(|id| grid.kill(*id));
        // The second is refused after a while, and has locked the first key meanwhile.
        for (command, is_answered) in [
            (format!("INCR {here}"), true),
            (format!("MSET {here} 7 {there} 7"), false),
            (format!("INCR {here}"), true),
            (format!("GET {there}"), false),
            (format!("GET {here}"), true),
        ] {
            let reply = client.run(&command);
            let is_error = matches!(&reply, Reply::Error(text) if text.starts_with(b"BUSY"));
            assert_eq!(is_error, !is_answered, "{engine} {command}: {reply:?}");
        }
        away.iter().for_each(|id| grid.restart(*id));
        grid.await_ready();
        assert_eq!(client.insist(&format!("INCRBY {there} 4")), Reply::Int(5), "{engine}");
        assert_eq!(client.insist(&format!("GET {here}")).bytes(), b"3", "{engine}");
        grid.await_equal_members();
        grid.stop();
    }
}

/// Work goes on while a node is missing, unless it is the only one that has its part.
fn work_on(grid: &Grid, load: &Load) {
    if grid.replicas > 1 {
        load.advance(STRETCH);
    }
}

/// The node that leads the first partition, and all others.
fn alone_and_others(grid: &Grid) -> (usize, Vec<usize>) {
    let alone = grid.leader(0);
    (alone, (0..grid.len()).filter(|id| *id != alone).collect())
}

/// Nothing gets through to a node or from it until the node is given up; what follows arrives in the middle of a frame.
fn lose_a_node(grid: &mut Grid, load: &Load) {
    let (alone, others) = alone_and_others(grid);
    for id in &others {
        grid.wires().lose(alone, *id);
        grid.wires().lose(*id, alone);
    }
    work_on(grid, load);
    grid.await_loss(alone, others[0]);
    for id in &others {
        grid.wires().open(alone, *id);
        grid.wires().open(*id, alone);
    }
}

/// What crosses one way between two nodes is late: it arrives when the node is lost already.
fn hold_a_link(grid: &mut Grid, load: &Load) {
    let (leader, others) = alone_and_others(grid);
    let member = (leader + grid.partitions) % grid.len();
    let held = if leader == member { others[0] } else { member };
    grid.wires().hold(leader, held);
    work_on(grid, load);
    grid.await_loss(leader, held);
    grid.wires().open(leader, held);
}
