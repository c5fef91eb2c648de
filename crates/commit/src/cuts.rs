//! Cuts: where checkpoints are taken, so that those of all partitions fit together (R-CUT).
//!
//! A cut is a place of the log that every partition marks: [`Content::Mark`] stands there in the log of each, and the checkpoint of
//! each is its state behind that entry. The places are multiples of [`SPACING`], so that a number tells by itself on which side of a
//! cut it is ([`era_of`]), and a cut lies beyond everything that any partition has in its log when it is chosen.
//!
//! ```text
//!  BGSAVE, or so many bytes logged
//!     │  Where ──▶ managers of all leaders ──At──▶ the highest place of all, and beyond it the cut
//!     ▼
//!  Heard(cut) ──▶ managers of all nodes, before everything else that is sent from then on
//!     │               each leader: MARK, before it appends anything else;  each node: Heard to all others
//!     ▼
//!  Marked(cut) ◀── leaders, once it is agreed on ──▶ answered
//! ```
//!
//! Streams keep their order, so whoever is told something that happened behind the cut has heard of the cut before: its own
//! effects are behind it too. So what one partition has before the cut rests on nothing that another has behind it. A partition
//! that is past the place already, or cannot write, does not mark it and has no checkpoint of it: then no set of that cut is
//! complete.

use std::collections::BTreeSet;

use ordain_model::{Epoch, Gsn, Micros, OutcomeStatus, PartitionId, codec};
use ordain_role::{Address, Bug, NodeId};

use crate::coordinator::Asker;
use crate::desk::Desk;
use crate::entry::{Content, Entry};

/// Cuts stand at multiples of so many places.
pub const SPACING: u64 = 1 << 23;

/// A round that takes longer is given up: a partition has no leader, or its messages are lost.
const ROUND_MAX: Micros = Micros::from_millis(2_000);
/// No partition gets as far as this place in any life of a cluster: 2^33 cuts from the first.
const BEYOND: u64 = 1 << 56;
/// A cut that was wanted and did not come about is wanted again after so long.
const AGAIN_AFTER: Micros = Micros::from_millis(1_000);

/// The number of the stretch between two cuts in which a place lies: the state before a cut at place `p` is that of all eras below
/// `era_of(p)`. Stores compare versions by it.
pub const fn era_of(place: Epoch) -> Epoch {
    Gsn(place.0).epoch()
}

/// The last era before a cut.
pub const fn era_before(cut: Epoch) -> Epoch {
    Epoch(era_of(cut).0.saturating_sub(1))
}

/// The first cut that is half a [`SPACING`] or more behind a place: nobody gets there before it is heard of.
const fn cut_behind(place: Epoch) -> Epoch {
    Epoch(((place.0 + SPACING / 2) / SPACING + 1) * SPACING)
}

/// A message about cuts, between managers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CutMessage {
    /// The sender has heard of this cut: everything that it says from now on may be behind it.
    Heard(Epoch),
    /// A leader that wants a cut: how far are you?
    Where,
    /// Leader: its partition has used places up to this one.
    At(PartitionId, Epoch),
    /// Leader: its partition has marked this cut.
    Marked(PartitionId, Epoch),
}

codec!(enum CutMessage {
    0 => Heard(cut),
    1 => Where,
    2 => At(partition, place),
    3 => Marked(partition, cut),
});

impl CutMessage {
    /// True if some node may say so: cuts stand where cuts stand, and no place is beyond all. A partition that believed another one would
    /// have no places left.
    pub const fn is_sound(&self) -> bool {
        match self {
            CutMessage::Heard(cut) | CutMessage::Marked(_, cut) => {
                cut.0.is_multiple_of(SPACING) && cut.0 < BEYOND
            }
            CutMessage::Where => true,
            CutMessage::At(_, place) => place.0 < BEYOND,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cuts {
    /// The latest cut that this node has heard of.
    heard: Epoch,
    /// The cut under way that this node has chosen, or is about to.
    round: Option<Round>,
    /// Clients that wait for the next one.
    waiting: Vec<Asker>,
    /// A cut is wanted, by the bytes that were logged or by a member that needs a checkpoint.
    is_wanted: bool,
    /// None is begun by itself before.
    rests_until: Micros,
    /// A checkpoint is being given away: none is begun by itself, as it would be left out here.
    is_saving: bool,
    /// About how many bytes of entries were applied since the last cut.
    logged: u64,
}

/// A cut that is being chosen and marked.
#[derive(Debug)]
struct Round {
    since: Micros,
    askers: Vec<Asker>,
    /// The partitions that have not answered: how far they are, or that they have marked it.
    missing: BTreeSet<PartitionId>,
    /// The highest place of those that have.
    highest: Epoch,
    /// The cut, once it is chosen.
    cut: Option<Epoch>,
}

/// An answer to clients.
pub type Answer = (Asker, OutcomeStatus);

impl Cuts {
    /// The log that is there at the start has marked this cut.
    pub fn replayed(&mut self, cut: Epoch) {
        self.heard = self.heard.max(cut);
    }

    /// Clients ask for a checkpoint, of the leader of their home.
    pub fn ask(&mut self, askers: Vec<Asker>, desk: &mut Desk<'_>) {
        self.waiting.extend(askers);
        self.begin_round(desk);
    }

    /// A checkpoint is wanted, if this node leads.
    pub const fn want(&mut self) {
        self.is_wanted = true;
    }

    /// Begins a round if somebody waits for one and none is under way.
    fn begin_round(&mut self, desk: &mut Desk<'_>) {
        let Some(lead) = desk.lead.filter(|_| self.round.is_none() && !desk.appender.is_full()) else {
            return;
        };
        let by_itself = self.is_wanted && !self.is_saving && self.rests_until <= desk.elapsed();
        if self.waiting.is_empty() && !by_itself {
            return;
        }
        self.is_wanted = false;
        self.logged = 0;
        let askers = std::mem::take(&mut self.waiting);
        let all = (0..desk.site.layout.partitions()).map(PartitionId);
        let missing: BTreeSet<PartitionId> = all.filter(|partition| *partition != lead.partition).collect();
        for partition in &missing {
            self.tell_leader(*partition, CutMessage::Where, desk);
        }
        let (since, highest) = (desk.elapsed(), desk.appender.last());
        self.round = Some(Round { since, askers, missing, highest, cut: None });
        self.choose(desk);
    }

    fn tell_leader(&self, partition: PartitionId, message: CutMessage, desk: &mut Desk<'_>) {
        if let Some((node, _)) = desk.leaders.of(partition) {
            desk.out.send(Address { node, role: desk.site.manager }, message);
        }
    }

    /// Chooses the cut, if all have said how far they are.
    fn choose(&mut self, desk: &mut Desk<'_>) {
        let Some(round) = self.round.as_mut().filter(|round| round.cut.is_none() && round.missing.is_empty())
        else {
            return;
        };
        let cut = cut_behind(round.highest.max(desk.appender.last()).max(self.heard));
        round.cut = Some(cut);
        round.missing = (0..desk.site.layout.partitions()).map(PartitionId).collect();
        self.hear(cut, desk);
    }

    /// Hears of a cut. All other nodes hear of it before anything else that this one tells them, and its partition marks it before
    /// anything else that it appends.
    pub fn hear(&mut self, cut: Epoch, desk: &mut Desk<'_>) {
        if cut <= self.heard {
            return;
        }
        self.heard = cut;
        let is_chosen_here = self.round.as_ref().is_some_and(|round| round.cut == Some(cut));
        // Planted, CUT-WHOLE: a node does not pass on which cut it has heard of.
        if is_chosen_here || !desk.site.bugs.has(Bug::KeepCut) {
            for node in 0..desk.site.nodes {
                self.tell(NodeId(node), desk);
            }
        }
        // Planted, CUT-WHOLE.
        if is_chosen_here || !desk.site.bugs.has(Bug::MarkLate) {
            self.mark(desk);
        }
    }

    /// Tells a node the latest cut: its stream begins anew, or a cut is new.
    pub fn tell(&self, node: NodeId, desk: &mut Desk<'_>) {
        if node != desk.site.node && self.heard > Epoch(0) {
            desk.out.send(Address { node, role: desk.site.manager }, CutMessage::Heard(self.heard));
        }
    }

    /// Marks the latest cut, if this node leads and its partition has not done so and is not past it.
    pub fn mark(&mut self, desk: &mut Desk<'_>) {
        if desk.lead.is_some() && self.heard > desk.appender.last() {
            desk.appender.note(Epoch(self.heard.0 - 1));
            desk.append(desk.clock, Content::Mark);
        }
    }

    /// Takes a message of another manager.
    pub fn take(&mut self, from: Address, message: CutMessage, desk: &mut Desk<'_>) {
        match message {
            CutMessage::Heard(cut) => self.hear(cut, desk),
            CutMessage::Where => {
                if let Some(lead) = desk.lead {
                    desk.out.send(from, CutMessage::At(lead.partition, desk.appender.last()));
                }
            }
            CutMessage::At(partition, place) => {
                let Some(round) = self.round.as_mut().filter(|round| round.cut.is_none()) else { return };
                if round.missing.remove(&partition) {
                    round.highest = round.highest.max(place);
                    self.choose(desk);
                }
            }
            CutMessage::Marked(partition, cut) => {
                if let Some(round) = self.round.as_mut().filter(|round| round.cut == Some(cut)) {
                    round.missing.remove(&partition);
                }
            }
        }
    }

    /// An entry of this node's partition is applied; `weight` is about how many bytes it has.
    pub fn applied(&mut self, entry: &Entry, weight: u64, desk: &mut Desk<'_>) {
        self.logged += weight;
        if !matches!(entry.content, Content::Mark) {
            let most = desk.site.checkpoint_bytes;
            self.is_wanted |= most > 0 && self.logged >= most;
            // Planted, CUT-WHOLE: the mark that is due comes only now.
            if desk.site.bugs.has(Bug::MarkLate) {
                self.mark(desk);
            }
            return;
        }
        self.logged = 0;
        self.is_wanted = false;
        self.hear(entry.place, desk);
        let Some(lead) = desk.lead.filter(|lead| lead.term == entry.term) else { return };
        let message = CutMessage::Marked(lead.partition, entry.place);
        // The node that has chosen it may lead no more, or not yet again: the others' rounds are of other cuts.
        for node in (0..desk.site.nodes).map(NodeId).filter(|node| *node != desk.site.node) {
            desk.out.send(Address { node, role: desk.site.manager }, message.clone());
        }
        self.take(desk.site.at(desk.site.manager), message, desk);
    }

    /// Ends a round that is over, begins the next if there is one to begin; answers the clients of the former. `is_saving`: a
    /// checkpoint is being given away.
    pub fn pass(&mut self, is_saving: bool, desk: &mut Desk<'_>) -> Vec<Answer> {
        self.is_saving = is_saving;
        let is_marked = |round: &Round| round.cut.is_some() && round.missing.is_empty();
        let is_late = |round: &Round| desk.elapsed().since(round.since) > ROUND_MAX;
        let ended = self.round.take_if(|round| is_marked(round) || is_late(round));
        let mut answers = Vec::new();
        if let Some(round) = ended {
            let is_marked = is_marked(&round);
            let status = if is_marked { OutcomeStatus::Committed } else { OutcomeStatus::Busy };
            if !is_marked {
                self.rests_until = desk.elapsed().plus(AGAIN_AFTER);
            }
            answers.extend(round.askers.into_iter().map(|asker| (asker, status)));
        }
        if desk.appender.is_full() {
            answers.extend(
                std::mem::take(&mut self.waiting).into_iter().map(|asker| (asker, OutcomeStatus::Busy)),
            );
        }
        self.begin_round(desk);
        answers
    }

    /// The node leads no more; answers the clients whose checkpoint is not cut.
    pub fn stand(&mut self) -> Vec<Answer> {
        let round = self.round.take();
        let of_round = round.into_iter().flat_map(|round| round.askers);
        let waiting = std::mem::take(&mut self.waiting);
        of_round.chain(waiting).map(|asker| (asker, OutcomeStatus::Busy)).collect()
    }

    /// The time at which [`Cuts::pass`] has something to do, if it has. `may_begin`: this node leads and its disk has space.
    pub fn due(&self, may_begin: bool) -> Option<Micros> {
        let late = self.round.as_ref().map(|round| round.since.plus(ROUND_MAX).plus(Micros(1)));
        let wanted = (may_begin && self.is_wanted && !self.is_saving && self.round.is_none())
            .then_some(self.rests_until);
        [late, wanted].into_iter().flatten().min()
    }
}

#[cfg(test)]
mod tests;
