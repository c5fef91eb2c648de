//! A log is kept for a member that is away only up to `--log-keep-bytes`: one that was away for longer finds its continuation
//! gone, is rebuilt from a member's checkpoint, and has all that was acknowledged meanwhile.

use std::collections::BTreeSet;

use crate::faults::grid::Grid;
use crate::support::{Expect, Reply, until};

/// A checkpoint every few dozen writes, and a log of some files for the sake of a member that is away.
const BOUNDED: &str = "log-segment-bytes = 65536\nlog-keep-bytes = 262144\ncheckpoint-log-bytes = 131072\n";
/// So many files.
const KEPT: usize = 262_144 / 65_536;
/// What each write has.
const VALUE_BYTES: usize = 4096;

struct Writer {
    value: String,
    acknowledged: Vec<String>,
}

impl Writer {
    fn write(&mut self, grid: &Grid, node: usize, count: usize) {
        let mut client = grid.client(node);
        for _ in 0..count {
            let key = format!("key:{}", self.acknowledged.len());
            assert_eq!(client.insist(&format!("SET {key} {}", self.value)), Reply::ok());
            self.acknowledged.push(key);
        }
    }
}

/// The files of a node's log, without the one that is made ahead.
fn segments(grid: &Grid, node: usize) -> BTreeSet<String> {
    let is_segment = |name: &String| name.starts_with("log-0") && name.ends_with(".seg");
    grid.files(node).into_iter().filter(is_segment).collect()
}

/// Has two of three nodes write, while the third is gone, until nothing of what it lacks is in their logs any more. Answers the
/// third, and what was acknowledged.
fn away_for_too_long(grid: &mut Grid) -> (usize, Writer) {
    let leader = grid.leader(0);
    let [gone, other] = [1, 2].map(|next| (leader + next) % 3);
    let mut writer = Writer { value: "v".repeat(VALUE_BYTES), acknowledged: Vec::new() };
    writer.write(grid, gone, 40);
    grid.await_equal_digests();
    grid.kill(gone);
    // What it has not got begins in these files, or behind them.
    let known = [leader, other].map(|node| (node, segments(grid, node)));
    let is_there = |grid: &Grid| known.iter().any(|(node, known)| !segments(grid, *node).is_disjoint(known));
    let mut most = 0;
    while is_there(grid) {
        assert!(writer.acknowledged.len() < 20_000, "nothing is trimmed while a member is away");
        writer.write(grid, leader, 8);
        writer.write(grid, other, 8);
        most = most.max(segments(grid, leader).len());
    }
    assert!(most > KEPT, "it was kept for the one that is away until it was too much: {most}");
    (gone, writer)
}

/// A node is told that its continuation is gone, gets a checkpoint, and becomes the same program again.
fn comes_back(mut grid: Grid, gone: usize, mut writer: Writer) {
    grid.restart(gone);
    grid.await_line(gone);
    grid.await_ready();
    grid.await_equal_digests();
    until("it has begun from a checkpoint", || grid.status(gone)["checkpoint"]["epoch"].as_u64() > Some(0));
    assert!(grid.status(gone)["started_over"].as_u64() > Some(0));
    let mut client = grid.client(gone);
    for key in &writer.acknowledged {
        assert_eq!(client.insist(&format!("STRLEN {key}")).int(), VALUE_BYTES as i64, "{key}");
    }
    // It takes part again.
    writer.write(&grid, gone, 8);
    grid.await_equal_digests();
    grid.stop();
}

#[test]
fn a_member_that_was_away_for_too_long_is_rebuilt_from_a_checkpoint() {
    let mut grid = Grid::start(1, 3, BOUNDED);
    let (gone, writer) = away_for_too_long(&mut grid);
    comes_back(grid, gone, writer);
}

#[test]
fn so_is_one_of_an_engine_with_locks() {
    let mut grid = Grid::start(1, 3, &format!("{BOUNDED}engine = \"no-wait\"\n"));
    let (gone, writer) = away_for_too_long(&mut grid);
    comes_back(grid, gone, writer);
}

#[test]
fn so_does_one_that_a_primary_ships_to() {
    let mut grid = Grid::start(1, 3, &format!("{BOUNDED}replication = \"async\"\n"));
    let (gone, writer) = away_for_too_long(&mut grid);
    // The others have in memory, too, what they have shipped of late. What is only in files is what counts here.
    for node in (0..3).filter(|node| *node != gone) {
        grid.await_same_digests(2);
        grid.kill(node);
        grid.restart(node);
        grid.leader(0);
    }
    grid.await_same_digests(2);
    comes_back(grid, gone, writer);
}
