//! Standing: a majority of the replicas is sealed, the newest of their logs is taken, and what is not here of it is fetched.

use std::collections::BTreeMap;

use ordain_model::{Epoch, Micros};
use ordain_role::{Bug, Bugs, NodeId, Now, Outbox};

use super::super::configuration::{StorageConfiguration, StorageMember};
use super::super::message::{Ballot, Line, LogBase, ReplicaState, Storage, Written};
use super::super::quorum::majority;
use super::following::Following;
use super::leading::Leading;
use super::{PATIENCE, Stage, StorageLog};
use crate::entry::EntryType;
use crate::message::Carrier;

/// The state of a server that stands.
#[derive(Debug)]
pub(super) struct Standing {
    pub ballot: Ballot,
    /// The time of the last progress.
    since: Micros,
    /// The replicas that have promised the ballot, with their states then.
    pub sealed: BTreeMap<NodeId, ReplicaState>,
    /// The first of them.
    first: Option<NodeId>,
    /// The log that is taken, once it is clear which that is.
    chosen: Option<Chosen>,
    /// The number of the question for lines that is not answered.
    fetch: Option<u64>,
}

/// The log that a server takes, and who counts by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// The replica that has it.
    node: NodeId,
    /// Its last line.
    last: Line,
    /// The newest configuration in it; that before the region has begun if it is empty.
    pub configuration: StorageConfiguration,
    /// The configuration is not known to be durable.
    pub is_open: bool,
}

impl Chosen {
    /// The newest log of those that have told their states, if there is one.
    pub fn of<'a>(states: impl Iterator<Item = (&'a NodeId, &'a ReplicaState)> + Clone) -> Option<Chosen> {
        let durable = states.clone().map(|(_, state)| state.durable).max()?;
        let (node, newest) = states.max_by_key(|(_, state)| state.last)?;
        Some(Chosen {
            node: *node,
            last: newest.last,
            configuration: newest.configuration.clone(),
            is_open: newest.configured > durable,
        })
    }

    /// The replicas that have told their states, in their generations.
    pub fn members_of<'a>(
        &self,
        states: impl Iterator<Item = (&'a NodeId, &'a ReplicaState)>,
        bugs: Bugs,
    ) -> Vec<StorageMember> {
        let member = |(node, state): (&NodeId, &ReplicaState)| {
            // Planted, ONE-LOG.
            let counted = self.configuration.generation(*node).filter(|_| bugs.has(Bug::CountForgetful));
            StorageMember { node: *node, generation: counted.unwrap_or(state.generation) }
        };
        states.map(member).collect()
    }

    /// Tells whether the first line of the log may not be on all replicas.
    pub fn is_founding(&self) -> bool {
        self.is_open && self.configuration.is_first
    }

    /// Tells whether a replica counts, by this configuration and by the one before while this one is open.
    pub fn counts(&self, member: &StorageMember) -> bool {
        self.configuration.counted.contains(member)
            && (!self.is_open || self.configuration.previous().counted.contains(member))
    }

    /// Tells whether so many of some replicas count, by this configuration and by the one before while this one is open. Before
    /// the region has begun all of them must be there.
    pub fn is_majority(&self, members: &[StorageMember], all: usize) -> bool {
        if !self.configuration.has_begun() {
            return members.len() == all;
        }
        let count = |of: &StorageConfiguration| {
            members.iter().filter(|member| of.counted.contains(member)).count() >= majority(all)
        };
        count(&self.configuration) && (!self.is_open || count(&self.configuration.previous()))
    }
}

impl Standing {
    /// The newest log, if it is clear that all that is durable is in it: a majority of `all` is sealed, and one of those that this log
    /// requires. See module `configuration` for why.
    fn choose(&self, all: usize, bugs: Bugs) -> Option<Chosen> {
        let mut chosen = Chosen::of(self.sealed.iter())?;
        if let Some(first) = self.first.filter(|_| bugs.has(Bug::ReadOneConfiguration)) {
            // Planted, ONE-LOG.
            chosen.configuration = self.sealed[&first].configuration.clone();
        }
        let members = chosen.members_of(self.sealed.iter(), bugs);
        let StorageConfiguration { required, counted, .. } = &chosen.configuration;
        let is_required = |of: &StorageMember| required.contains(&of.node) && counted.contains(of);
        let has_required = counted.is_empty() || members.iter().any(is_required);
        (has_required && chosen.is_majority(&members, all)).then_some(chosen)
    }
}

impl<T: EntryType, M: Carrier<T::Entry>> StorageLog<T, M> {
    /// Asks the replicas to promise a ballot that is larger than all that are known.
    pub(super) fn stand(&mut self, now: Now, out: &mut Outbox<M>) {
        let ballot = self.promised.next_of(self.rank);
        if ballot >= Ballot::END {
            return out.halt("the ballots of the region are used up");
        }
        self.promised = ballot;
        self.counts.stood += 1;
        self.stage = Stage::Stands(Standing {
            ballot,
            since: now.elapsed,
            sealed: BTreeMap::new(),
            first: None,
            chosen: None,
            fetch: None,
        });
        self.tell_replicas(&Storage::Seal(ballot), out);
    }

    pub(super) fn tick_standing(&mut self, now: Now, _: &mut Outbox<M>) {
        let Stage::Stands(standing) = &self.stage else { return };
        if now.elapsed.since(standing.since) >= PATIENCE {
            self.follow(now);
        }
    }

    /// A replica has promised a ballot.
    pub(super) fn sealed(
        &mut self,
        now: Now,
        from: NodeId,
        ballot: Ballot,
        state: ReplicaState,
        out: &mut Outbox<M>,
    ) {
        let (all, bugs) = (self.settings.replicas.len(), self.settings.bugs);
        let standing = match &mut self.stage {
            Stage::Stands(standing) if standing.ballot == ballot => standing,
            Stage::Leads(leading) => return leading.sealed(from, ballot, &state),
            _ => return,
        };
        standing.first.get_or_insert(from);
        standing.sealed.insert(from, state);
        if standing.chosen.is_some() {
            return;
        }
        standing.since = now.elapsed;
        standing.chosen = standing.choose(all, bugs);
        if standing.chosen.is_some() {
            self.fetch_chosen(now, out);
        }
    }

    /// Leads if all of the newest log is here, and else asks for what is not.
    fn fetch_chosen(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Stands(Standing { ballot, chosen: Some(chosen), .. }) = &self.stage else { return };
        let (ballot, node, last) = (*ballot, chosen.node, chosen.last);
        if !chosen.configuration.has_begun() && last.lsn == 0 && self.settings.begun > Epoch(0) {
            return out.halt(format!(
                "this server has a checkpoint of everything up to place {}, and none of the region's storage nodes has anything: \
                 they have lost all that came after; bring back their directories, or a backup, or begin with empty \
                 directories on all nodes",
                self.settings.begun
            ));
        }
        match &self.lines {
            Some(lines) if lines.last() == last => return self.lead(now, out),
            // Lines that are durable are in every newest log.
            Some(lines) if lines.last().lsn >= last.lsn => {
                return out.halt(format!(
                    "line {} is durable and the newest log of a majority ends with {}: storage nodes have lost what \
                     they had acknowledged",
                    lines.last().lsn,
                    last.lsn
                ));
            }
            Some(_) | None => {}
        }
        self.questions += 1;
        let after = self.place();
        let number = self.questions;
        if let Stage::Stands(standing) = &mut self.stage {
            (standing.fetch, standing.since) = (Some(number), now.elapsed);
        }
        out.send(self.at(node), Storage::Fetch { number, ballot, after });
    }

    /// Takes lines of the newest log.
    pub(super) fn fetched(
        &mut self,
        now: Now,
        number: u64,
        previous: Line,
        lines: Vec<Written>,
        out: &mut Outbox<M>,
    ) {
        let Stage::Stands(Standing { fetch, chosen: Some(chosen), .. }) = &mut self.stage else { return };
        if fetch.take_if(|asked| *asked == number).is_none() {
            return;
        }
        let (is_all, last) = (lines.is_empty(), chosen.last);
        if !self.take(previous, lines) || (is_all && self.last() != last) {
            return self.follow(now);
        }
        self.fetch_chosen(now, out);
    }

    /// The newest log does not reach back to what this server has.
    pub(super) fn fetch_trimmed(&mut self, now: Now, number: u64, base: &LogBase, out: &mut Outbox<M>) {
        let Stage::Stands(Standing { fetch, .. }) = &mut self.stage else { return };
        if fetch.take_if(|asked| *asked == number).is_none() {
            return;
        }
        if self.skip(base, out) {
            return self.fetch_chosen(now, out);
        }
        // Another replica may keep what is missing here, and not know yet that it is durable.
        self.behind = Some(base.epoch);
        self.follow(now);
        self.stage = Stage::Follows(Following::behind(now.elapsed));
    }

    /// Leads: the first line of the ballot is written, and sent with what replicas lack before it.
    fn lead(&mut self, now: Now, out: &mut Outbox<M>) {
        let following = Stage::Follows(Following::default());
        let Stage::Stands(standing) = std::mem::replace(&mut self.stage, following) else { return };
        let (Some(chosen), Some(lines)) = (standing.chosen, &mut self.lines) else { return };
        self.counts.won += 1;
        let (ballot, sealed) = (standing.ballot, &standing.sealed);
        let leading = Leading::begin(&self.settings, ballot, (lines, &chosen), sealed, now.elapsed);
        match leading {
            Some(leading) => self.stage = Stage::Leads(leading),
            None => out.halt("a leader's line is of a smaller ballot than the one before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Five replicas in their first generation, some of them required.
    fn requiring(of: &[u16]) -> StorageConfiguration {
        let counted = (1..=5).map(|node| StorageMember { node: NodeId(node), generation: 1 }).collect();
        StorageConfiguration {
            counted,
            required: of.iter().copied().map(NodeId).collect(),
            ..StorageConfiguration::default()
        }
    }

    fn standing(sealed: &[(u16, (u64, u64), &[u16])]) -> Standing {
        let state = |(ballot, lsn), of: &[u16]| ReplicaState {
            generation: 1,
            last: Line { ballot: Ballot(ballot), lsn },
            configuration: requiring(of),
            ..ReplicaState::default()
        };
        Standing {
            ballot: Ballot(640),
            since: Micros(0),
            sealed: sealed.iter().map(|(node, last, of)| (NodeId(*node), state(*last, of))).collect(),
            first: sealed.first().map(|(node, ..)| NodeId(*node)),
            chosen: None,
            fetch: None,
        }
    }

    fn chosen(standing: &Standing, reads_one: bool) -> Option<u16> {
        let bugs = if reads_one { Bugs::NONE.with(Bug::ReadOneConfiguration) } else { Bugs::NONE };
        standing.choose(5, bugs).map(|chosen| chosen.node.0)
    }

    /// regions.md, section 4.10: the log whose last entry has the highest (ballot, lsn).
    #[test]
    fn the_newest_log_of_a_majority_is_taken() {
        let all: &[u16] = &[1, 2, 3, 4, 5];
        assert_eq!(chosen(&standing(&[(1, (64, 9), all), (2, (128, 3), all)]), false), None, "two of five");
        assert_eq!(
            chosen(&standing(&[(1, (64, 9), all), (2, (128, 3), all), (5, (64, 4), all)]), false),
            Some(2)
        );
        assert_eq!(
            chosen(&standing(&[(1, (64, 9), all), (2, (64, 10), all), (5, (64, 4), all)]), false),
            Some(2)
        );
    }

    /// commit.md, schedule 9: "one of the configured" is wrong if that is read from whoever answers. The newest configuration of
    /// a majority counts, and one of its members has all that is durable.
    #[test]
    fn a_member_of_the_newest_configuration_must_be_sealed() {
        let (all, two): (&[u16], &[u16]) = (&[1, 2, 3, 4, 5], &[1, 2]);
        // Lines behind 7, which says that 1 and 2 are all that is left, are on these two alone.
        let mut sealed = vec![(4, (64, 5), all), (3, (64, 7), two), (5, (64, 6), all)];
        assert_eq!(chosen(&standing(&sealed), false), None);
        assert_eq!(chosen(&standing(&sealed), true), Some(3), "the bug: what is behind line 7 is lost");
        sealed.push((2, (64, 12), two));
        assert_eq!(chosen(&standing(&sealed), false), Some(2));
    }

    /// A replica that has lost its disk does not count until the line that admits it is durable, or one of those before it does
    /// without it: see the proof in module `configuration`.
    #[test]
    fn who_counts_is_told_by_the_newest_log_of_all_that_answer() {
        let all: &[u16] = &[1, 2, 3, 4, 5];
        let mut standing = standing(&[(1, (64, 9), all), (2, (64, 9), all), (3, (64, 0), all)]);
        let set = |standing: &mut Standing, node, change: &dyn Fn(&mut ReplicaState)| {
            change(standing.sealed.get_mut(&NodeId(node)).unwrap());
        };
        assert_eq!(chosen(&standing, false), Some(2));
        // The third has lost its disk.
        set(&mut standing, 3, &|state| {
            *state = ReplicaState { generation: 2, ..ReplicaState::default() };
        });
        assert_eq!(chosen(&standing, false), None);
        let forgetful = standing.choose(5, Bugs::NONE.with(Bug::CountForgetful));
        assert!(forgetful.is_some(), "the bug: what it had acknowledged may be lost");
        // A leader has written the line that admits it, of which nobody knows that it is durable.
        let admitting = requiring(all).with(&[StorageMember { node: NodeId(3), generation: 2 }]);
        let admitting = admitting.after(&requiring(all));
        set(&mut standing, 2, &|state| {
            (state.configuration, state.configured) = (admitting.clone(), 10);
            state.last.lsn = 10;
        });
        assert_eq!(chosen(&standing, false), None, "one majority alone");
        set(&mut standing, 1, &|state| state.durable = 10);
        assert_eq!(chosen(&standing, false), Some(2));
        set(&mut standing, 1, &|state| state.durable = 0);
        standing.sealed.insert(NodeId(4), standing.sealed[&NodeId(1)].clone());
        assert_eq!(chosen(&standing, false), Some(2), "three that counted before, and four now");
    }

    #[test]
    fn a_region_begins_with_all_its_replicas() {
        let of = |count: u16| {
            let sealed: Vec<(u16, (u64, u64), &[u16])> =
                (1..=count).map(|node| (node, (0, 0), &[][..])).collect();
            let mut standing = standing(&sealed);
            standing.sealed.values_mut().for_each(|state| state.configuration = Default::default());
            standing.choose(5, Bugs::NONE).map(|chosen| chosen.configuration.has_begun())
        };
        assert_eq!((of(4), of(5)), (None, Some(false)));
    }
}
