//! A replica as its leader sees it: how far it is, what is under way to it, and how it gets what the leader does not
//! keep in memory.
//!
//! Lines are sent one message after the other while answers come. After an answer that something does not fit, or when none
//! comes, one message *probes* from where the replica is known to be, and the others wait for its answer.

use std::collections::{BTreeMap, VecDeque};

use ordain_model::Micros;
use ordain_role::NodeId;

use super::super::configuration::StorageMember;
use super::super::lines::Lines;
use super::super::message::{Ballot, Line, LogBase, Storage, Written};
use super::HEARTBEAT_EVERY;

/// The number of messages with lines that a replica may have to answer.
const MESSAGES_OPEN: usize = 16;
/// The time without an answer after which it is probed again: while it is probed, and while lines flow.
const PROBE_AGAIN: Micros = Micros::from_millis(300);
const FLOW_AGAIN: Micros = Micros::from_millis(2000);

/// A replica.
#[derive(Debug)]
pub(super) struct Peer {
    pub node: NodeId,
    /// The generation in which it has spoken last.
    pub generation: u64,
    /// The line up to which it has synced this leader's log in that generation.
    pub matched: u64,
    /// The next line to send.
    pub next: u64,
    /// The number of the last message with lines, or in place of one.
    number: u64,
    /// Answers to messages before this one say nothing of what fits.
    counts_from: u64,
    is_probed: bool,
    /// It was probed with the first line in memory.
    has_tried_memory: bool,
    /// The messages with lines that are not answered.
    open: VecDeque<u64>,
    /// The line up to which it was told that all are durable.
    told: u64,
    /// The time of the last message, of the last answer that something was taken, and of the last word.
    sent: Option<Micros>,
    progress: Micros,
    pub heard: Option<Micros>,
    /// The time when it was last known to be able to write.
    pub able: Micros,
    pub is_full: bool,
    /// It gets lines from another replica, by way of this server.
    pub relay: Option<Relay>,
}

/// Lines that another replica is asked for.
#[derive(Debug, Default)]
pub(super) struct Relay {
    /// The question that is not answered, and when it was asked.
    pub question: Option<(u64, Micros)>,
    /// How many were asked, so that each is asked in turn.
    pub turn: usize,
    /// Nobody is asked before.
    pub not_before: Micros,
    /// The replicas that do not keep what is wanted, and where their logs begin.
    pub trimmed: BTreeMap<NodeId, LogBase>,
}

impl Peer {
    /// A replica that is sealed with a log which is the leader's up to a line, or of which nothing is known but that
    /// its log is the leader's up to there.
    pub fn new(member: StorageMember, matched: u64, next: u64, now: Micros) -> Peer {
        Peer {
            node: member.node,
            generation: member.generation,
            matched,
            next,
            number: 0,
            counts_from: 0,
            is_probed: true,
            has_tried_memory: false,
            open: VecDeque::new(),
            told: 0,
            sent: None,
            progress: now,
            heard: None,
            able: now,
            is_full: false,
            relay: None,
        }
    }

    /// Has heard from it within a time.
    pub fn is_heard(&self, now: Micros, within: Micros) -> bool {
        self.heard.is_some_and(|heard| now.since(heard) < within)
    }

    /// The replica in its generation.
    pub fn member(&self) -> StorageMember {
        StorageMember { node: self.node, generation: self.generation }
    }

    /// It speaks in another generation: nothing is known any more of what it has.
    pub fn renew(&mut self, generation: u64, now: Micros) {
        (self.generation, self.matched) = (generation, 0);
        self.has_tried_memory = false;
        self.reset(0, now);
    }

    /// Goes back to what it is known to have, or to a line that it says is the leader's.
    pub fn reset(&mut self, from: u64, now: Micros) {
        self.next = from.max(self.matched) + 1;
        self.counts_from = self.number + 1;
        (self.is_probed, self.progress) = (true, now);
        self.open.clear();
        self.relay = None;
    }

    /// It has answered. Whether it counts in its generation says whether it counts as able too.
    pub fn appended(&mut self, (number, through, is_full): (u64, u64, bool), counts: bool, now: Micros) {
        self.heard = Some(now);
        self.has_tried_memory &= through == 0;
        self.matched = self.matched.max(through);
        self.next = self.next.max(self.matched + 1);
        while self.open.pop_front_if(|open| *open <= number).is_some() {
            self.progress = now;
        }
        if is_full {
            // What is under way is not taken.
            self.is_full = true;
            return self.reset(self.matched, now);
        }
        self.able = if counts { now } else { self.able };
        if number >= self.counts_from {
            (self.is_probed, self.is_full) = (false, false);
        }
    }

    /// What was sent does not follow what it has; its log is the leader's up to a line. It may be so for longer, up to the line
    /// before those in memory: that is tried once.
    pub fn unfit(&mut self, (number, durable): (u64, u64), before_memory: u64, counts: bool, now: Micros) {
        (self.heard, self.able) = (Some(now), if counts { now } else { self.able });
        if number < self.counts_from {
            return;
        }
        let is_beyond = self.next > before_memory + 1 && durable.max(self.matched) < before_memory;
        self.reset(durable, now);
        if is_beyond && !std::mem::replace(&mut self.has_tried_memory, true) {
            self.next = before_memory + 1;
        }
    }

    /// Begins anew with what it is known to have, if it has not answered for too long.
    pub fn tick(&mut self, now: Micros) {
        let patience = if self.is_probed { PROBE_AGAIN } else { FLOW_AGAIN };
        if !self.open.is_empty() && now.since(self.progress) >= patience {
            self.reset(self.matched, now);
        }
    }

    /// Tells whether a message with lines may be sent. Whose disk is full gets one at the pace of heartbeats.
    fn may_send(&self, now: Micros) -> bool {
        let is_due = !self.is_full || self.is_due(now);
        is_due && self.open.len() < if self.is_probed { 1 } else { MESSAGES_OPEN }
    }

    /// Tells whether it has been sent nothing for the time of a heartbeat.
    fn is_due(&self, now: Micros) -> bool {
        self.sent.is_none_or(|sent| now.since(sent) >= HEARTBEAT_EVERY)
    }

    /// Tells whether it has answered all there is and does not know that more of it is durable. No line is about to tell it so, and those who
    /// read the log there wait for that.
    fn is_behind(&self, lines: &Lines, durable: u64) -> bool {
        self.told < durable && self.open.is_empty() && self.matched == lines.last().lsn && !self.is_full
    }

    /// Numbers a message with so many lines.
    fn number(&mut self, lines: usize, now: Micros) -> u64 {
        self.number += 1;
        self.sent = Some(now);
        if lines > 0 {
            if self.open.is_empty() {
                self.progress = now;
            }
            self.open.push_back(self.number);
            self.next += lines as u64;
        }
        self.number
    }

    /// The next message to it, if there is one to send: lines in memory, or a heartbeat.
    pub fn next_append(
        &mut self,
        lines: &Lines,
        (ballot, durable): (Ballot, u64),
        message_bytes: usize,
        now: Micros,
    ) -> Option<Storage> {
        let is_in_memory = self.next > lines.base().lsn && self.next <= lines.last().lsn;
        if is_in_memory && self.relay.is_none() && self.may_send(now) {
            let previous = lines.at(self.next - 1)?;
            let lines = lines.some_from(self.next, message_bytes);
            let number = self.number(lines.len(), now);
            return Some(self.append((ballot, number, durable), previous, lines));
        }
        if !self.is_due(now) && !self.is_behind(lines, durable) {
            return None;
        }
        let previous = lines.at(self.matched).unwrap_or_default();
        let number = self.number(0, now);
        Some(self.append((ballot, number, durable), previous, Vec::new()))
    }

    fn append(
        &mut self,
        (ballot, number, durable): (Ballot, u64, u64),
        previous: Line,
        lines: Vec<Written>,
    ) -> Storage {
        self.told = self.told.max(durable);
        let (generation, acknowledged) = (self.generation, self.matched);
        Storage::Append { ballot, number, previous, lines, durable, generation, acknowledged }
    }

    /// Tells whether the next line that it needs is not in memory, and nothing is under way to it.
    pub fn needs_relay(&self, lines: &Lines) -> bool {
        self.next <= lines.base().lsn && self.open.is_empty()
    }

    /// The message with lines of another replica, if they follow what it has.
    pub fn relayed(
        &mut self,
        (previous, lines): (Line, Vec<Written>),
        (ballot, durable): (Ballot, u64),
        now: Micros,
    ) -> Option<Storage> {
        if previous.lsn + 1 != self.next {
            return None;
        }
        let number = self.number(lines.len(), now);
        Some(self.append((ballot, number, durable), previous, lines))
    }

    /// Checks the invariants of the fields.
    pub fn check(&self, last: u64) -> Result<(), String> {
        let Peer { node, matched, next, .. } = self;
        match matched < next && *next <= last + 1 && self.open.len() <= MESSAGES_OPEN {
            true => Ok(()),
            false => Err(format!(
                "replica {} has {matched}, is sent {next} next, and the last line is {last}",
                node.0
            )),
        }
    }
}
