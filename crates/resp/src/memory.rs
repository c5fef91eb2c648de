//! What the connections of a node hold together, and the node's limit of memory (`maxmemory`).
//!
//! All event loops share one [`Memory`]. Its figures are three sums and a sample:
//!
//! - *held*: output that clients have not taken, requests that are not whole, MULTI blocks, interactive transactions.
//!   Beyond three quarters of `maxmemory-clients` a connection with output waits before it asks for more; beyond all of
//!   it the connection that holds most is closed.
//! - *expected*: how long the replies of requests under way may be, judging by the last ones of each connection. A request
//!   that may be answered with values waits while that is more than [`EXPECTED_MAX`].
//! - *needed*: what writes under way may make of memory at most, only while there is a limit. A write waits for those
//!   before it while it could be beyond the limit with them, so that a pipeline of writes does not get far past it.
//! - *used*: what the allocator has given out, which is data, versions kept for readers, queues, buffers and scripts.
//!
//! The partitions whose nodes are over their limits are *short*. What needs memory in one of them is refused before it
//! is submitted, so it has no effect, and the refusal is the transaction's. A node tells the others how it stands
//! ([`Memory::report`]); a report counts for [`REPORT_FOR`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use ordain_model::Micros;

/// What Redis answers, and so this.
pub(crate) const OUT_OF_MEMORY: &str = "OOM command not allowed when used memory > 'maxmemory'.";

/// The number of bytes of replies that may be under way together, judging by how long the last ones were.
pub const EXPECTED_MAX: u64 = 64 << 20;
/// How long a reply with values is taken to be on a connection that has had none yet, for each value, bytes.
pub(crate) const UNKNOWN_REPLY: usize = 4 << 20;
/// `maxmemory-clients` by default: as much as all connections may hold, bytes.
pub const CLIENTS_MAX: u64 = 1 << 30;
/// A connection that holds less need not be known to other event loops.
const LARGE: u64 = 1 << 20;
/// How long a report of another node counts.
pub const REPORT_FOR: Micros = Micros::from_millis(3000);

/// A node's report of its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// It is over its limit.
    pub is_over: bool,
    /// The number of bytes that are left to its limit; `u64::MAX` without one.
    pub room: u64,
}

impl Report {
    /// What a node without a limit says.
    pub const UNLIMITED: Report = Report { is_over: false, room: u64::MAX };
}

/// A report of another node, and when it came.
#[derive(Clone, Copy, Debug)]
struct NodeReport {
    node: u16,
    partition: u16,
    report: Report,
    at: Micros,
}

/// Figures of one node, shared by its event loops.
#[derive(Debug)]
pub struct Memory {
    held: AtomicU64,
    expected: AtomicU64,
    needed: AtomicU64,
    /// The needs of writes that have ended since the last reports of other nodes, and of those before.
    ended: [AtomicU64; 2],
    /// Of connections that were closed before their writes had ended, and when: for two looks they count.
    orphaned: [AtomicU64; 2],
    /// About how much the connection holds that holds most; halved as time passes, and as one is closed.
    largest: AtomicU64,
    clients_max: AtomicU64,
    limit: AtomicU64,
    used: fn() -> u64,
    /// This node's own report, with hysteresis: it is over until a sixty-fourth of the limit is free.
    is_over: AtomicBool,
    /// By partition; empty on a node on its own.
    short: Vec<AtomicBool>,
    is_any_short: AtomicBool,
    /// The least room that another node has reported.
    room_elsewhere: AtomicU64,
    partition: u16,
    nodes: u64,
    reports: Mutex<Vec<NodeReport>>,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::new(|| 0, (0, 1), 1)
    }
}

impl Memory {
    /// A node of so many, that holds a partition of so many, with no limit. `used` says how many bytes the process has
    /// allocated.
    pub fn new(used: fn() -> u64, (partition, partitions): (u16, u16), nodes: u16) -> Memory {
        Memory {
            held: AtomicU64::new(0),
            expected: AtomicU64::new(0),
            needed: AtomicU64::new(0),
            ended: [AtomicU64::new(0), AtomicU64::new(0)],
            orphaned: [AtomicU64::new(0), AtomicU64::new(0)],
            largest: AtomicU64::new(0),
            clients_max: AtomicU64::new(CLIENTS_MAX),
            limit: AtomicU64::new(0),
            used,
            is_over: AtomicBool::new(false),
            short: (0..partitions).map(|_| AtomicBool::new(false)).collect(),
            is_any_short: AtomicBool::new(false),
            room_elsewhere: AtomicU64::new(u64::MAX),
            partition,
            nodes: u64::from(nodes.max(1)),
            reports: Mutex::default(),
        }
    }

    /// Sets `maxmemory`, bytes; 0: none.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Relaxed);
        self.is_over.store(false, Relaxed);
        self.look();
    }

    /// `maxmemory`, bytes; 0: none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Relaxed)
    }

    /// Sets `maxmemory-clients`, bytes; 0: none.
    pub fn set_clients_max(&self, bytes: u64) {
        self.clients_max.store(if bytes == 0 { u64::MAX } else { bytes }, Relaxed);
    }

    /// Bytes that the process has allocated; 0 where they are not counted.
    pub fn used(&self) -> u64 {
        (self.used)()
    }

    /// Bytes that all connections hold.
    pub fn held(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// Tells whether all connections hold more than they may.
    pub fn is_crowded(&self) -> bool {
        self.held() > self.clients_max.load(Relaxed)
    }

    /// Tells whether a connection that holds so much is to be closed while all hold too much: if none of another event loop is
    /// known that holds more than twice as much.
    pub fn is_to_close(&self, held: u64) -> bool {
        let largest = self.largest.fetch_max(held, Relaxed).max(held);
        let is_largest = held > 0 && held >= largest / 2;
        if is_largest {
            self.largest.store(held / 2, Relaxed);
        }
        is_largest
    }

    /// Tells whether those that do not take their replies are to wait before they ask for more.
    pub(crate) fn is_filling(&self) -> bool {
        self.held() > self.clients_max.load(Relaxed) / 4 * 3
    }

    /// Tells whether a request whose reply may be so long can be submitted: if not, as soon as others have ended.
    pub(crate) fn can_expect(&self, bytes: u64) -> bool {
        let expected = self.expected.load(Relaxed);
        expected == 0 || expected.saturating_add(bytes) <= EXPECTED_MAX
    }

    /// Tells whether a write that may need so much can be submitted: if not, as soon as others have ended.
    pub(crate) fn can_need(&self, bytes: u64) -> bool {
        let limit = self.limit();
        let sum = |parts: &[AtomicU64; 2]| parts.iter().map(|part| part.load(Relaxed)).sum::<u64>();
        let needed = self.needed.load(Relaxed).saturating_add(sum(&self.orphaned));
        let (ended, elsewhere) = (sum(&self.ended), self.room_elsewhere.load(Relaxed));
        let room = limit.saturating_sub(self.used());
        let fits_here = limit == 0 || needed == 0 || needed.saturating_add(bytes) <= room;
        // Each of the nodes may think that the room is its own.
        let fits_there = elsewhere == u64::MAX
            || needed == 0 && ended == 0
            || needed.saturating_add(ended).saturating_add(bytes) <= elsewhere / self.nodes;
        fits_here && fits_there
    }

    /// Tells whether it matters what a write needs.
    #[inline]
    pub(crate) fn is_limited(&self) -> bool {
        self.limit() > 0 || self.room_elsewhere.load(Relaxed) < u64::MAX
    }

    /// Tells whether anything that needs memory may have to be refused.
    #[inline]
    pub(crate) fn is_short(&self) -> bool {
        self.is_any_short.load(Relaxed) || self.limit() > 0 && self.is_over_now()
    }

    /// Tells whether this node is over its limit.
    pub(crate) fn is_over_now(&self) -> bool {
        let (limit, used) = (self.limit(), self.used());
        limit > 0 && used > if self.is_over.load(Relaxed) { limit - limit / 64 } else { limit }
    }

    /// Tells whether a node of this partition is over its limit.
    pub(crate) fn is_short_in(&self, partition: u16) -> bool {
        let is_said = self.short.get(usize::from(partition)).is_some_and(|short| short.load(Relaxed));
        is_said || partition == self.partition && self.is_over_now()
    }

    /// Looks how this node stands, for it to tell the others.
    pub fn look(&self) -> Report {
        let is_over = self.is_over_now();
        self.is_over.store(is_over, Relaxed);
        let limit = self.limit();
        let report = match limit {
            0 => Report::UNLIMITED,
            _ => Report { is_over, room: limit.saturating_sub(self.used()) },
        };
        self.sum_up(&self.reports.lock().unwrap_or_else(PoisonError::into_inner));
        report
    }

    /// Takes a report of another node.
    pub fn report(&self, (node, partition): (u16, u16), report: Report, at: Micros) {
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.retain(|one| one.node != node && at.since(one.at) < REPORT_FOR);
        if report != Report::UNLIMITED {
            reports.push(NodeReport { node, partition, report, at });
        }
        self.sum_up(&reports);
    }

    /// Drops reports that are too old, and the needs of writes that newer reports include.
    pub fn pass(&self, now: Micros) {
        self.largest.store(self.largest.load(Relaxed) / 2, Relaxed);
        for parts in [&self.ended, &self.orphaned] {
            parts[1].store(parts[0].swap(0, Relaxed), Relaxed);
        }
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.retain(|one| now.since(one.at) < REPORT_FOR);
        self.sum_up(&reports);
    }

    fn sum_up(&self, reports: &[NodeReport]) {
        let mut is_any_short = false;
        for (partition, short) in (0..).zip(&self.short) {
            let is_own = partition == self.partition && self.is_over.load(Relaxed);
            let is_short =
                is_own || reports.iter().any(|one| one.partition == partition && one.report.is_over);
            short.store(is_short, Relaxed);
            is_any_short |= is_short;
        }
        self.is_any_short.store(is_any_short, Relaxed);
        let least = reports.iter().map(|one| one.report.room).min();
        self.room_elsewhere.store(least.unwrap_or(u64::MAX), Relaxed);
    }

    fn end(&self, needed: u64) {
        take(&self.needed, needed);
        if self.nodes > 1 {
            self.ended[0].fetch_add(needed, Relaxed);
        }
    }
}

fn take(sum: &AtomicU64, bytes: u64) {
    sum.fetch_sub(bytes, Relaxed);
}

/// One connection's part of the sums.
#[derive(Debug, Default)]
pub(crate) struct Account {
    held: u64,
    expected: u64,
    needed: u64,
}

impl Account {
    /// Brings the connection's part up to date.
    #[inline]
    pub(crate) fn settle(&mut self, memory: &Memory, held: u64, expected: u64, needed: u64) {
        let change = |sum: &AtomicU64, was: &mut u64, is: u64| {
            if is > *was {
                sum.fetch_add(is - *was, Relaxed);
            } else if is < *was {
                take(sum, *was - is);
            }
            *was = is;
        };
        if held > self.held && held >= LARGE {
            memory.largest.fetch_max(held, Relaxed);
        }
        change(&memory.held, &mut self.held, held);
        change(&memory.expected, &mut self.expected, expected);
        if needed < self.needed {
            memory.end(self.needed - needed);
            self.needed = needed;
        }
        change(&memory.needed, &mut self.needed, needed);
    }

    /// The connection is closed: what its writes need is still to come.
    pub(crate) fn close(&mut self, memory: &Memory) {
        memory.orphaned[0].fetch_add(self.needed, Relaxed);
        self.settle(memory, 0, 0, 0);
    }

    /// The bytes that its writes under way may need.
    pub(crate) fn needed(&self) -> u64 {
        self.needed
    }

    /// Bytes that the connection holds.
    pub(crate) fn held(&self) -> u64 {
        self.held
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ordain_model::options::parse_size;

    const NOW: Micros = Micros(1_000_000_000);

    #[test]
    fn sizes_are_read_as_redis_reads_them() {
        for (text, bytes) in [
            ("0", Some(0)),
            ("200mb", Some(200 << 20)),
            ("1G", Some(1_000_000_000)),
            ("1gb", Some(1 << 30)),
            ("3k", Some(3000)),
            ("3KB", Some(3072)),
            ("7b", Some(7)),
            ("", None),
            ("mb", None),
            ("-1", None),
            ("1tb", None),
            ("1 mb", None),
            ("99999999999999999gb", None),
        ] {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
    }

    #[test]
    fn a_node_is_over_until_a_part_of_its_limit_is_free() {
        let memory = Memory::new(|| 640, (0, 1), 1);
        assert!(!memory.is_short());
        memory.set_limit(640);
        assert!(!memory.is_short(), "as much as the limit is not over it");
        memory.set_limit(639);
        assert!(memory.is_short() && memory.look().is_over);
        // 640 is more than 645 less its sixty-fourth.
        memory.limit.store(645, Relaxed);
        assert!(memory.look().is_over);
        memory.limit.store(660, Relaxed);
        assert_eq!(memory.look(), Report { is_over: false, room: 20 });
        memory.set_limit(0);
        assert_eq!(memory.look(), Report::UNLIMITED);
    }

    #[test]
    fn what_another_node_says_counts_for_its_partition_and_for_a_while() {
        let memory = Memory::new(|| 0, (0, 3), 6);
        let over = Report { is_over: true, room: 0 };
        memory.report((4, 1), over, NOW);
        assert!(
            memory.is_short() && memory.is_short_in(1) && !memory.is_short_in(0) && !memory.is_short_in(2)
        );
        memory.report((1, 1), Report { is_over: false, room: 9 }, NOW);
        assert!(memory.is_short_in(1), "another of its members is still over");
        memory.report((4, 1), Report::UNLIMITED, NOW);
        assert!(!memory.is_short());
        memory.report((4, 1), over, NOW);
        memory.pass(NOW.plus(REPORT_FOR));
        assert!(!memory.is_short(), "its report is too old");
    }

    #[test]
    fn writes_wait_for_those_before_them_while_they_could_be_too_much() {
        let memory = Memory::new(|| 100, (0, 1), 1);
        let mut account = Account::default();
        assert!(memory.can_need(u64::MAX));
        memory.set_limit(200);
        // One goes on whatever it needs.
        assert!(memory.can_need(1000));
        account.settle(&memory, 0, 0, 90);
        assert!(memory.can_need(10) && !memory.can_need(11));
        account.settle(&memory, 0, 0, 0);
        assert!(memory.can_need(1000));
    }

    #[test]
    fn who_leaves_does_not_take_with_it_what_its_writes_need() {
        let memory = Memory::new(|| 100, (0, 1), 1);
        memory.set_limit(200);
        let mut account = Account::default();
        account.settle(&memory, 5, 5, 90);
        account.close(&memory);
        assert!(!memory.can_need(11) && memory.held() == 0);
        memory.pass(NOW);
        memory.pass(NOW);
        assert!(memory.can_need(1000));
    }

    #[test]
    fn what_other_nodes_have_room_for_is_shared_until_they_speak_again() {
        let memory = Memory::new(|| 0, (0, 2), 2);
        memory.report((1, 1), Report { is_over: false, room: 200 }, NOW);
        let mut account = Account::default();
        account.settle(&memory, 0, 0, 60);
        assert!(memory.can_need(40) && !memory.can_need(41));
        account.settle(&memory, 0, 0, 0);
        assert!(!memory.can_need(41), "what has ended is not yet in a report");
        memory.pass(NOW);
        assert!(!memory.can_need(41));
        memory.pass(NOW);
        assert!(memory.can_need(41));
    }

    #[test]
    fn of_several_event_loops_the_one_with_the_largest_connection_closes_it() {
        let memory = Memory::default();
        let (mut large, mut small) = (Account::default(), Account::default());
        large.settle(&memory, 10 * LARGE, 0, 0);
        small.settle(&memory, 2 * LARGE, 0, 0);
        assert!(!memory.is_to_close(small.held()) && memory.is_to_close(large.held()));
        large.close(&memory);
        // It is forgotten after a while, and the largest then is closed.
        (0..3).for_each(|_| memory.pass(NOW));
        assert!(memory.is_to_close(small.held()));
        assert!(!memory.is_to_close(0));
    }

    #[test]
    fn what_connections_hold_adds_up() {
        let memory = Memory::default();
        memory.set_clients_max(100);
        let mut accounts = [Account::default(), Account::default()];
        accounts[0].settle(&memory, 70, EXPECTED_MAX, 0);
        assert!(!memory.is_filling() && !memory.is_crowded() && !memory.can_expect(1));
        accounts[1].settle(&memory, 31, 0, 0);
        assert!(memory.is_filling() && memory.is_crowded());
        accounts[0].settle(&memory, 0, 0, 0);
        assert_eq!((memory.held(), accounts[1].held()), (31, 31));
        assert!(memory.can_expect(EXPECTED_MAX) && !memory.is_filling());
    }
}
