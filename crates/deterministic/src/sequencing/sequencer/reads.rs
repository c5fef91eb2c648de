//! Reads on a snapshot: as of which epoch each is run, and which states the shards have to keep for them
//! (docs/protocols/paxflow.md).

use std::sync::Arc;

use ordain_model::{Chunk, Epoch, Millis, Snapshot};
use ordain_role::{Address, Now, Outbox};

use super::members::Leader;
use super::{HOLD, HOLD_FOR, LATE, LOW_WATERMARK, LOW_WATERMARK_EVERY, Sequencer};
use crate::sequencing::message::{Message, Reading};
use crate::sequencing::snapshots::Wanted;

impl<X> Sequencer<X> {
    /// Reads that are run on a snapshot.
    pub(super) fn read(
        &mut self,
        now: Now,
        chunk: Arc<Chunk>,
        snapshot: Snapshot,
        out: &mut Outbox<Message<X>>,
    ) {
        // Another node's bytes are checked and not trusted: a snapshot takes no write, and a shard that runs one panics.
        if !chunk.txns().iter().all(|txn| txn.detached) {
            return;
        }
        if self.snapshots.hold(&chunk, &snapshot, out) {
            if !self.holding {
                self.holding = true;
                out.set_timer(HOLD, HOLD_FOR);
            }
            return;
        }
        let kept = self.snapshots.kept();
        let at = match snapshot {
            Snapshot::Closed => self.epoch.max(kept),
            Snapshot::Published(since) => Epoch::from(&since).max(self.snapshots.earliest()),
            Snapshot::At(token, then) => {
                return self.run_reads(now, &chunk, (Epoch::from(&token), then), out);
            }
            Snapshot::Latest(since) if self.snapshots.is_alone(self.members.is_some()) => {
                Epoch::from(&since).max(self.epoch).max(kept)
            }
            Snapshot::Latest(since) => {
                self.snapshots.wanted.push(Wanted::Here(chunk, Epoch::from(&since)));
                return self.ask_leader(out);
            }
        };
        // No later write is of an earlier time.
        self.now = self.now.max(now.wall.to_millis());
        self.run_reads(now, &chunk, (at, self.now), out);
    }

    /// Has reads run as of the end of an epoch and as of a time.
    fn run_reads(
        &mut self,
        now: Now,
        chunk: &Arc<Chunk>,
        as_of: (Epoch, Millis),
        out: &mut Outbox<Message<X>>,
    ) {
        self.snapshots.run(as_of, now.elapsed, chunk, out);
        self.check_late(out);
    }

    /// Runs the reads that were held until the shards keep what they need.
    pub(super) fn run_held(
        &mut self,
        now: Now,
        held: Vec<(Arc<Chunk>, Snapshot)>,
        out: &mut Outbox<Message<X>>,
    ) {
        for (chunk, snapshot) in held {
            self.read(now, chunk, snapshot, out);
        }
    }

    pub(super) fn check_late(&mut self, out: &mut Outbox<Message<X>>) {
        if (self.snapshots.is_open() || self.snapshots.is_keeping()) && !self.is_checking_late {
            self.is_checking_late = true;
            out.set_timer(LATE, self.settings.silence);
        }
    }

    /// An epoch is sealed that was not when this was wanted.
    pub(super) fn grant(&mut self, now: Now, wanted: Wanted, epoch: Epoch, out: &mut Outbox<Message<X>>) {
        match wanted {
            Wanted::Here(chunk, since) => {
                self.read(now, chunk, Snapshot::Published(epoch.max(since).into()), out)
            }
            Wanted::Member(node, (gateway, number)) => {
                let stamp = Reading::Stamp(gateway, number, epoch, self.now);
                out.send(Address { node, ..self.neighbours.me }, stamp);
            }
        }
    }

    /// The latest state is for the leader to name, where another node leads.
    pub(super) fn ask_leader(&mut self, out: &mut Outbox<Message<X>>) {
        let Leader::Other(node) = self.leader else { return };
        let is_here = |wanted: &mut Wanted| matches!(wanted, Wanted::Here(..));
        let here: Vec<Wanted> = self.snapshots.wanted.extract_if(.., is_here).collect();
        for wanted in here {
            let Wanted::Here(chunk, since) = wanted else { continue };
            let (gateway, number) = (chunk.gateway, chunk.number);
            self.snapshots.asked.insert((gateway, number), (chunk, since));
            out.send(Address { node, ..self.neighbours.me }, Reading::Ask(gateway, number));
        }
    }

    /// Asks again: the node that was asked may not know of it, or does not lead any more.
    pub(super) fn ask_leader_again(&mut self, out: &mut Outbox<Message<X>>) {
        let asked = std::mem::take(&mut self.snapshots.asked).into_values();
        self.snapshots.wanted.extend(asked.map(|(chunk, since)| Wanted::Here(chunk, since)));
        self.ask_leader(out);
    }

    pub(super) fn take_reading(
        &mut self,
        now: Now,
        from: Address,
        reading: Reading,
        out: &mut Outbox<Message<X>>,
    ) {
        match reading {
            // A sequencer that does not lead, or does not know it yet, answers when it does: another may have by then.
            Reading::Ask(gateway, number) => {
                self.snapshots.wanted.push(Wanted::Member(from.node, (gateway, number)));
            }
            Reading::Stamp(gateway, number, epoch, then) => {
                // A read is not as of a time before that of what it sees, however slow the clock is here.
                self.now = self.now.max(then);
                if let Some((chunk, since)) = self.snapshots.asked.remove(&(gateway, number)) {
                    self.read(now, chunk, Snapshot::Published(epoch.max(since).into()), out);
                }
            }
            Reading::Kept(epoch) => {
                let held = self.snapshots.note_kept(from, epoch);
                self.run_held(now, held, out);
            }
            Reading::Run { .. }
            | Reading::Parts(_)
            | Reading::LowWatermark { .. }
            | Reading::Keep(_)
            | Reading::Forget(_) => {
                out.halt("the sequencer was sent reads that are for a shard");
            }
        }
    }

    /// Tells shards which states are still wanted.
    pub(super) fn report_low_watermark(&mut self, far: bool, out: &mut Outbox<Message<X>>) {
        if self.settings.snapshots && self.snapshots.report_low_watermark(far, out) && !self.is_reporting {
            self.is_reporting = true;
            out.set_timer(LOW_WATERMARK, LOW_WATERMARK_EVERY);
        }
    }
}
