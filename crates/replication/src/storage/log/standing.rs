//! Standing: a majority of the replicas is sealed, the newest of their logs is taken, and what is not here of it is fetched.

use std::collections::BTreeMap;

use ordain_model::Micros;
use ordain_role::{Bug, NodeId, Now, Outbox};

use super::super::message::{Ballot, Line, LogBase, ReplicaState, Storage, Written};
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
    /// The newest log, once it is clear which that is, and who has it.
    chosen: Option<(NodeId, ReplicaState)>,
    /// The number of the question for lines that is not answered.
    fetch: Option<u64>,
}

impl Standing {
    /// The replica with the newest log, if so many are sealed, and one of the configuration that this log ends in.
    fn choose(&self, majority: usize, reads_one: bool) -> Option<(NodeId, ReplicaState)> {
        if self.sealed.len() < majority {
            return None;
        }
        let (node, newest) = self.sealed.iter().max_by_key(|(_, state)| state.last)?;
        let configuration = match self.first.filter(|_| reads_one) {
            // Planted, ONE-LOG.
            Some(first) => &self.sealed[&first].configuration,
            None => &newest.configuration,
        };
        let has_member = configuration.iter().any(|node| self.sealed.contains_key(node));
        has_member.then(|| (*node, ReplicaState { configuration: configuration.clone(), ..newest.clone() }))
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
        let (majority, reads_one) = (self.majority(), self.settings.bugs.has(Bug::ReadOneConfiguration));
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
        standing.chosen = standing.choose(majority, reads_one);
        if standing.chosen.is_some() {
            self.fetch_chosen(now, out);
        }
    }

    /// Leads if all of the newest log is here, and else asks for what is not.
    fn fetch_chosen(&mut self, now: Now, out: &mut Outbox<M>) {
        let Stage::Stands(Standing { ballot, chosen: Some((node, state)), .. }) = &self.stage else {
            return;
        };
        let (ballot, node, last) = (*ballot, *node, state.last);
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
        let Stage::Stands(Standing { fetch, chosen: Some((_, state)), .. }) = &mut self.stage else {
            return;
        };
        if fetch.take_if(|asked| *asked == number).is_none() {
            return;
        }
        let (is_all, last) = (lines.is_empty(), state.last);
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
        let (Some((_, state)), Some(lines)) = (standing.chosen, &mut self.lines) else { return };
        self.counts.won += 1;
        let leading = Leading::begin(
            &self.settings,
            standing.ballot,
            (lines, state.configuration),
            &standing.sealed,
            now.elapsed,
        );
        match leading {
            Some(leading) => self.stage = Stage::Leads(leading),
            None => out.halt("a leader's line is of a smaller ballot than the one before"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(of: &[u16]) -> Vec<NodeId> {
        of.iter().copied().map(NodeId).collect()
    }

    fn standing(sealed: &[(u16, (u64, u64), &[u16])]) -> Standing {
        let state = |(ballot, lsn), of: &[u16]| ReplicaState {
            last: Line { ballot: Ballot(ballot), lsn },
            configuration: nodes(of),
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
        standing.choose(3, reads_one).map(|(node, _)| node.0)
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
}
