//! The digest exchange: members of a replication group compare the digests of their states, and one that differs takes itself out
//! (`docs/protocols/calvin.md`, C38).
//!
//! Every change of the state is credited to the batch that made it. So a shard knows exactly what its digest was when a
//! batch and all before it were executed and nothing else was, although transactions of later batches are under way. Now
//! and then it *attests* to its digest: it sends it to the shards of the same number on its members. A member that had another
//! digest there *doubts*; then each member attests once more. The digest of the majority stands, and a member that had another one
//! has diverged.
//!
//! If no digest has a majority although all have attested, as with two members that differ, the digest that more members had
//! stands, and among equals the one of the lowest node. While a member that would decide it is away, all go on.

use std::collections::{BTreeMap, VecDeque};

use ordain_model::{Digest, DigestSpan, Epoch, PartitionId};
use ordain_role::{Address, NodeId};

use super::backlog::BatchPlace;

/// An attestation: the digest of a shard after a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attestation {
    pub(crate) after: BatchPlace,
    pub(crate) digest: Digest,
    /// Whether some member had another digest: each attests to its own.
    pub(crate) doubted: bool,
}

/// The digests of a shard and the attestations of its members.
#[derive(Debug)]
pub(crate) struct DigestExchange {
    me: NodeId,
    /// The same shard on the other nodes that hold its partition.
    members: Vec<Address>,
    /// The batch that changes are credited to, and the digest when that began.
    credited: BatchPlace,
    since: Digest,
    /// What batches that are not applied have changed so far.
    changes: BTreeMap<BatchPlace, Digest>,
    /// The digest after each of the last applied batches that changed it, and before the first of them.
    history: VecDeque<(BatchPlace, Digest)>,
    before: (BatchPlace, Digest),
    applied: BatchPlace,
    attested: BatchPlace,
    /// Attestations of members to batches that are not applied here, or that are in doubt.
    received: BTreeMap<BatchPlace, Heard>,
    /// The place up to which nothing is received any more.
    closed: BatchPlace,
    doubts: u64,
}

/// The attestations to one batch.
#[derive(Debug, Default)]
struct Heard {
    attested: BTreeMap<NodeId, Digest>,
    doubted: bool,
    answered: bool,
}

/// How many digests are remembered: of more batches than a member is behind, unless it is far behind.
const HISTORY: usize = 1 << 12;
/// The most batches for which attestations of members are kept.
const RECEIVED: usize = 1 << 8;

impl DigestExchange {
    /// Makes that of a shard on a node with these members; without any there is nothing to exchange.
    pub(crate) fn new(me: NodeId, members: Vec<Address>) -> DigestExchange {
        DigestExchange {
            me,
            members,
            credited: BatchPlace::default(),
            since: Digest::default(),
            changes: BTreeMap::new(),
            history: VecDeque::new(),
            before: (BatchPlace::default(), Digest::default()),
            applied: BatchPlace::default(),
            attested: BatchPlace::default(),
            received: BTreeMap::new(),
            closed: BatchPlace::default(),
            doubts: 0,
        }
    }

    /// The shard begins where everything up to a batch was executed, and nothing else, with this digest.
    pub(crate) fn begin(&mut self, place: BatchPlace, digest: Digest) {
        (self.credited, self.since) = (place, digest);
        (self.before, self.applied, self.attested) = ((place, digest), place, place);
    }

    /// Returns the members, which are sent attestations.
    pub(crate) fn members(&self) -> &[Address] {
        &self.members
    }

    /// Returns how often there was doubt.
    pub(crate) const fn doubts(&self) -> u64 {
        self.doubts
    }

    /// Changes of the state from now on are a batch's; `digest` is that of the state.
    #[inline]
    pub(crate) fn credit(&mut self, place: BatchPlace, digest: impl FnOnce() -> Digest) {
        if place != self.credited && !self.members.is_empty() {
            self.settle(digest());
            self.credited = place;
        }
    }

    fn settle(&mut self, digest: Digest) {
        let change = digest.minus(self.since);
        if change != Digest::default() {
            let credited = self.changes.entry(self.credited).or_default();
            *credited = credited.plus(change);
            self.since = digest;
        }
    }

    /// Notes that everything up to a batch is executed; returns the attestations to be sent to all members.
    ///
    /// # Errors
    /// This node has diverged.
    pub(crate) fn applied(
        &mut self,
        place: BatchPlace,
        digest: impl FnOnce() -> Digest,
    ) -> Result<Vec<Attestation>, String> {
        if self.members.is_empty() {
            return Ok(Vec::new());
        }
        self.settle(digest());
        self.applied = place;
        while let Some(change) = self.changes.first_entry().filter(|change| *change.key() <= place) {
            let (place, change) = change.remove_entry();
            let last = self.history.back().map_or(self.before.1, |(_, digest)| *digest);
            self.history.push_back((place, last.plus(change)));
            if self.history.len() > HISTORY
                && let Some(oldest) = self.history.pop_front()
            {
                self.before = oldest;
            }
        }
        let due: Vec<BatchPlace> = self
            .received
            .range(..=place)
            .filter(|(_, received)| !received.answered)
            .map(|(t, _)| *t)
            .collect();
        due.into_iter().filter_map(|place| self.resolve(place).transpose()).collect()
    }

    /// The digest after a batch that is applied; `None` if that is too long ago.
    fn digest_after(&self, place: BatchPlace) -> Option<Digest> {
        let known = self.history.partition_point(|(at, _)| *at <= place);
        match known.checked_sub(1) {
            Some(at) => self.history.get(at).map(|(_, digest)| *digest),
            None => (self.before.0 <= place).then_some(self.before.1),
        }
    }

    /// Returns the digest at the end of an epoch, and for how long it held; everything up to `complete` is executed.
    /// `None` if that is too long ago, or no members compare digests.
    pub(crate) fn span_at(&self, epoch: Epoch, complete: Epoch) -> Option<DigestSpan> {
        let end = (epoch, PartitionId(u16::MAX));
        if self.members.is_empty() || end < self.before.0 {
            return None;
        }
        let known = self.history.partition_point(|(at, _)| *at <= end);
        let (first, digest) =
            known.checked_sub(1).and_then(|at| self.history.get(at)).unwrap_or(&self.before);
        let next = self.history.get(known).map_or(Epoch(u64::MAX), |(place, _)| place.0);
        Some(DigestSpan { first: first.0, last: complete.min(Epoch(next.0 - 1)), digest: *digest })
    }

    /// Returns the attestation that is sent to members now and then.
    pub(crate) fn news(&mut self) -> Option<Attestation> {
        let is_new = self.applied > self.attested && !self.members.is_empty();
        self.attested = self.applied;
        let digest = self.digest_after(self.applied).filter(|_| is_new)?;
        Some(Attestation { after: self.applied, digest, doubted: false })
    }

    /// Takes the attestation of a member; returns the one to be sent to all of them, if any.
    ///
    /// # Errors
    /// This node has diverged.
    pub(crate) fn receive(
        &mut self,
        member: NodeId,
        attestation: Attestation,
    ) -> Result<Option<Attestation>, String> {
        if attestation.after <= self.closed {
            return Ok(None);
        }
        let received = self.received.entry(attestation.after).or_default();
        received.attested.insert(member, attestation.digest);
        received.doubted |= attestation.doubted;
        if self.received.len() > RECEIVED
            && let Some((oldest, _)) = self.received.pop_first()
        {
            self.closed = oldest;
        }
        if attestation.after <= self.applied { self.resolve(attestation.after) } else { Ok(None) }
    }

    /// Compares the attestations to an applied batch with its digest here.
    fn resolve(&mut self, place: BatchPlace) -> Result<Option<Attestation>, String> {
        let own = self.digest_after(place);
        let Some(received) = self.received.get_mut(&place) else { return Ok(None) };
        let Some(own) =
            own.filter(|own| received.doubted || received.attested.values().any(|attested| attested != own))
        else {
            self.received.remove(&place);
            return Ok(None);
        };
        let is_first = !std::mem::replace(&mut received.answered, true);
        self.doubts += u64::from(is_first);
        let all = self.members.len() + 1;
        let attested =
            received.attested.iter().map(|(node, digest)| (*node, *digest)).chain([(self.me, own)]);
        let mut holders: Vec<(Digest, Vec<NodeId>)> = Vec::new();
        for (node, digest) in attested {
            match holders.iter_mut().find(|(of, _)| *of == digest) {
                Some((_, nodes)) => nodes.push(node),
                None => holders.push((digest, vec![node])),
            }
        }
        let attested: usize = holders.iter().map(|(_, nodes)| nodes.len()).sum();
        let lowest = |nodes: &[NodeId]| std::cmp::Reverse(nodes.iter().min().copied());
        let first = holders.into_iter().max_by_key(|(_, nodes)| (nodes.len(), lowest(nodes)));
        let Some((digest, nodes)) = first else { return Ok(None) };
        let is_decided = nodes.len() * 2 > all || attested == all;
        if is_decided && digest != own {
            let names: Vec<String> = nodes.iter().map(|node| node.0.to_string()).collect();
            return Err(format!(
                "the state after epoch {} of partition {} has digest {own} here and {digest} on node {}: this node has \
                 diverged from its members and takes itself out",
                place.0,
                place.1,
                names.join(", ")
            ));
        }
        Ok(is_first.then_some(Attestation { after: place, digest: own, doubted: true }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn place(epoch: u64) -> BatchPlace {
        (Epoch(epoch), PartitionId(0))
    }

    const fn state(sum: u128) -> Digest {
        Digest { sum, records: 1 }
    }

    fn digest_exchange(me: u16, of: u16) -> DigestExchange {
        let members = (0..of).filter(|node| *node != me).map(|node| Address { node: NodeId(node), role: 16 });
        DigestExchange::new(NodeId(me), members.collect())
    }

    /// Members with these digests after batch 1 attest to each other until none has anything to send; which have
    /// diverged?
    fn diverged_of(digests: &[u128], away: Option<usize>) -> Vec<usize> {
        let count = digests.len();
        let mut members: Vec<DigestExchange> =
            (0..count).map(|me| digest_exchange(me as u16, count as u16)).collect();
        let mut under_way = VecDeque::new();
        for (me, member) in members.iter_mut().enumerate().filter(|(me, _)| Some(*me) != away) {
            member.credit(place(1), Digest::default);
            assert_eq!(member.applied(place(1), || state(digests[me])), Ok(Vec::new()));
            under_way.extend(member.news().map(|attestation| (me, attestation)));
            assert_eq!(member.news(), None, "it is no news");
        }
        let mut diverged = Vec::new();
        let mut attested = 0;
        while let Some((from, attestation)) = under_way.pop_front() {
            attested += 1;
            assert!(attested < 100, "they never stop");
            for to in (0..count).filter(|to| *to != from && Some(*to) != away) {
                if diverged.contains(&to) {
                    continue;
                }
                match members[to].receive(NodeId(from as u16), attestation) {
                    Ok(answer) => under_way.extend(answer.map(|attestation| (to, attestation))),
                    Err(_) => diverged.push(to),
                }
            }
        }
        diverged
    }

    #[test]
    fn who_differs_from_most_of_its_members_takes_itself_out() {
        assert_eq!(diverged_of(&[5, 5, 5], None), []);
        for odd in 0..3 {
            let mut digests = [5; 3];
            digests[odd] = 6;
            assert_eq!(diverged_of(&digests, None), [odd]);
        }
        assert_eq!(diverged_of(&[5, 6], None), [1], "of two, the lower node's stands");
        let mut all = diverged_of(&[5, 6, 7], None);
        all.sort_unstable();
        assert_eq!(all, [1, 2]);
        assert_eq!(diverged_of(&[5, 6, 5], Some(2)), [], "who would decide it is away");
        assert_eq!(diverged_of(&[5, 5, 5, 6, 5], Some(2)), [3]);
    }

    #[test]
    fn a_digest_is_that_of_a_batch_though_later_ones_are_under_way() {
        let (mut one, mut other) = (digest_exchange(0, 3), digest_exchange(1, 3));
        // Batch 2 runs in the middle of batch 1; the other does one after the other.
        one.credit(place(1), Digest::default);
        one.credit(place(2), || state(10));
        one.credit(place(1), || state(14));
        assert_eq!(one.applied(place(1), || state(15)), Ok(Vec::new()));
        let early = one.news().unwrap();
        assert_eq!((early.after, early.digest), (place(1), state(11)));
        other.credit(place(1), Digest::default);
        other.credit(place(2), || state(11));
        // It had not come to the batch when the attestation came.
        assert_eq!(other.receive(NodeId(0), early), Ok(None));
        assert_eq!(other.applied(place(2), || state(15)), Ok(Vec::new()));
        assert_eq!(one.applied(place(2), || state(15)), Ok(Vec::new()));
        assert_eq!(one.receive(NodeId(1), other.news().unwrap()), Ok(None));
        assert_eq!((one.doubts(), other.doubts()), (0, 0));
        // A batch that changes nothing need not be known to all.
        assert_eq!(one.applied(place(4), || state(15)), Ok(Vec::new()));
        assert_eq!(one.applied(place(9), || state(15)), Ok(Vec::new()));
        let after = place(6);
        assert_eq!(
            one.receive(NodeId(1), Attestation { after, digest: state(15), doubted: false }),
            Ok(None)
        );
        assert!(
            one.receive(NodeId(1), Attestation { after, digest: state(16), doubted: false })
                .unwrap()
                .is_some()
        );
    }

    #[test]
    fn the_digest_at_the_end_of_an_epoch_is_that_of_its_last_batch() {
        let mut digest_exchange = digest_exchange(0, 3);
        let second = (Epoch(4), PartitionId(1));
        for (at, sum) in [(place(2), 5), (place(4), 6), (second, 7), (place(9), 8)] {
            digest_exchange.credit(at, || digest_exchange_state(&at));
            assert_eq!(digest_exchange.applied(at, || state(sum)), Ok(Vec::new()));
        }
        let at = |epoch| {
            digest_exchange.span_at(Epoch(epoch), Epoch(12)).map(|s| (s.first.0, s.last.0, s.digest.sum))
        };
        assert_eq!((at(1), at(2), at(3)), (Some((0, 1, 0)), Some((2, 3, 5)), Some((2, 3, 5))));
        assert_eq!((at(4), at(8), at(12)), (Some((4, 8, 7)), Some((4, 8, 7)), Some((9, 12, 8))));
        assert_eq!(DigestExchange::new(NodeId(0), Vec::new()).span_at(Epoch(1), Epoch(1)), None);
    }

    /// The state before a batch of the test above.
    fn digest_exchange_state(at: &BatchPlace) -> Digest {
        match (at.0.0, at.1.0) {
            (2, _) => Digest::default(),
            (4, 0) => state(5),
            (4, _) => state(6),
            _ => state(7),
        }
    }

    #[test]
    fn what_is_long_ago_is_not_compared() {
        let mut digest_exchange = digest_exchange(0, 3);
        for epoch in 1..=2 * HISTORY as u64 {
            digest_exchange.credit(place(epoch), || state(u128::from(epoch - 1)));
            assert_eq!(digest_exchange.applied(place(epoch), || state(u128::from(epoch))), Ok(Vec::new()));
        }
        let attestation = |epoch| Attestation { after: place(epoch), digest: state(0), doubted: false };
        assert_eq!(digest_exchange.receive(NodeId(1), attestation(1)), Ok(None));
        assert!(digest_exchange.receive(NodeId(1), attestation(HISTORY as u64 + 1)).unwrap().is_some());
        // What is of the future is bounded.
        for epoch in 0..4 * RECEIVED as u64 {
            assert_eq!(digest_exchange.receive(NodeId(2), attestation((1 << 20) + epoch)), Ok(None));
        }
        assert_eq!(digest_exchange.received.len(), RECEIVED);
    }
}
