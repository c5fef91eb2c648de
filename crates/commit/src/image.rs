//! The image of the agreed state at a cut, as a checkpoint holds it beside records and outcomes of sessions.
//!
//! It stands in the frames of a checkpoint that only its family can read, in [`Part`]s, so that none is long. Whoever begins
//! from a checkpoint puts them together again.

use std::collections::VecDeque;
use std::sync::Arc;

use ordain_checkpoint::Piece;
use ordain_model::wire::Codec as _;
use ordain_model::{Db, Millis, Placement, codec};
use ordain_replication::EntryType as _;

use crate::agreed::Decided;
use crate::entry::{Entries, Entry};
use crate::heard::Heard;
use crate::ids::{Age, AttemptId, Term};
use crate::known::Living;
use crate::view::Seen;

/// The values of the agreed state that are one each. What is added here stands in checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The last term that has begun.
    pub term: Term,
    /// The latest time that a transaction of an entry has seen.
    pub now: Millis,
    /// Times before this one may have been used to tell what has expired.
    pub ceiling: Millis,
    /// What the partition has heard of the decisions of all.
    pub heard: Heard,
    /// The readers that may be under way.
    pub living: Living,
    /// No version of the partition follows more than this, nor must more readers not see it.
    pub followed: Seen,
}

codec!(struct Standing { term, now, ceiling, heard, living, followed });

/// The stamp that a participant remembers of a record, beside its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// The record's database.
    pub db: Db,
    /// Its key.
    pub key: Vec<u8>,
    /// The stamp of its latest write.
    pub stamp: Age,
}

codec!(struct Remembered { db, key, stamp });

/// A part of the image.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// The values that are one each. It comes first.
    Standing(Standing),
    /// Promises whose outcome is not known, each as the entry that it is.
    Prepared(Vec<Vec<u8>>),
    /// Outcomes that participants may yet ask for.
    Decided(Vec<(AttemptId, Decided)>),
    /// Stamps of records that were written lately, of one participant.
    Remembered(Vec<Remembered>),
}

codec!(enum Part {
    // Tags 0, 2 and 4 were Standing and Decided before there were views, tag 1 Prepared before entries had numbers of the size that they need, and tag 6
    // Decided before it had places.
    5 => Standing(standing),
    7 => Prepared(entries),
    8 => Decided(outcomes),
    3 => Remembered(records),
});

codec!(struct Decided { commit, participants, place });

/// The image, whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Image {
    /// The values that are one each.
    pub standing: Standing,
    /// Promises whose outcome is not known.
    pub prepared: VecDeque<Arc<Entry>>,
    /// Outcomes that participants may yet ask for.
    pub decided: VecDeque<(AttemptId, Decided)>,
    /// Stamps of records that were written lately. Participants give them away themselves.
    pub remembered: Vec<Remembered>,
}

/// Takes the next piece out of what a participant remembers, of about so many bytes; `None` once all are taken.
pub fn remembered(all: &mut Vec<Remembered>, enough: usize) -> Option<Piece> {
    let mut bytes = 0;
    let is_enough = |record: &Remembered| {
        let was_enough = bytes >= enough;
        bytes += record.key.len() + 13;
        was_enough
    };
    let count = all.iter().rev().position(is_enough).unwrap_or(all.len());
    let part = all.split_off(all.len() - count);
    (count > 0).then(|| Piece::input(Part::Remembered(part).to_bytes()))
}

impl Image {
    /// Makes the first piece, which has the values that are one each.
    pub fn first(&self) -> Piece {
        Piece::input(Part::Standing(self.standing.clone()).to_bytes())
    }

    /// Takes the next piece out of it, of about so many bytes at least; `None` once all are taken.
    pub fn next(&mut self, enough: usize) -> Option<Piece> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < enough
            && let Some(entry) = self.prepared.pop_front()
        {
            let entry = Entries::encode(&entry);
            bytes += entry.len();
            entries.push(entry);
        }
        if !entries.is_empty() {
            return Some(Piece::input(Part::Prepared(entries).to_bytes()));
        }
        /// An outcome has some such number of bytes.
        const OUTCOME: usize = 64;
        let weight = |(_, decided): &(AttemptId, Decided)| {
            OUTCOME + decided.commit.as_ref().map_or(0, |with| with.view.weight())
        };
        let mut count = 0;
        let mut bytes = 0;
        while bytes < enough.max(1)
            && let Some(next) = self.decided.get(count)
        {
            bytes += weight(next);
            count += 1;
        }
        let outcomes: Vec<_> = self.decided.drain(..count).collect();
        (count > 0).then(|| Piece::input(Part::Decided(outcomes).to_bytes()))
    }

    /// Puts a piece back, as a checkpoint holds it. Records are placed as in the layout of the checkpoint.
    ///
    /// # Errors
    /// It is no part of such an image.
    pub fn put(&mut self, placement: &Placement, input: &[u8]) -> Result<(), String> {
        let part = Part::from_bytes(input).ok_or("what it says of decisions and promises does not parse")?;
        match part {
            Part::Standing(standing) => self.standing = standing,
            Part::Prepared(entries) => {
                for entry in entries {
                    self.prepared.push_back(Entries::decode(placement, &entry)?);
                }
            }
            Part::Decided(outcomes) => self.decided.extend(outcomes),
            Part::Remembered(records) => self.remembered.extend(records),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ordain_model::{Epoch, PartitionId};

    use super::*;
    use crate::entry::{Commitment, Content, Prepare};
    use crate::ids::{Age, Bounds, Lead, TransactionId};
    use crate::view::View;

    fn who(number: u64) -> AttemptId {
        let home = Lead { partition: PartitionId(1), term: Term(3) };
        AttemptId { transaction: TransactionId { home, number }, attempt: 2 }
    }

    fn image(promises: u64, outcomes: u64) -> Image {
        let begin = |place, content| Entry {
            place: Epoch(place),
            term: Term(4),
            now: Millis(9),
            content,
            agreed: None,
        };
        let prepare = |number| {
            let (attempt, bounds, ceiling) = (who(number), Bounds::at(Age(number)), Millis(number));
            let (changes, writes, holds) = Default::default();
            Prepare { attempt, bounds, view: View::NONE, ceiling, changes, writes, holds, among: None }
        };
        let promised = |number| Arc::new(begin(number + 2, Content::Prepare(prepare(number))));
        let outcome = |number| {
            (
                who(number),
                Decided {
                    commit: (number % 2 == 0).then_some(Commitment::at(Age(number))),
                    participants: vec![PartitionId(2)],
                    place: Epoch(number + 1),
                },
            )
        };
        let standing =
            Standing { term: Term(4), now: Millis(77), ceiling: Millis(99), ..Standing::default() };
        let prepared = (0..promises).map(promised).collect();
        let decided = (100..100 + outcomes).map(outcome).collect();
        Image { standing, prepared, decided, remembered: Vec::new() }
    }

    #[test]
    fn an_image_goes_into_pieces_of_any_length_and_comes_back() {
        for (promises, outcomes) in [(0, 0), (1, 0), (0, 1), (7, 9), (40, 300)] {
            for enough in [1, 100, 1 << 20] {
                let whole = image(promises, outcomes);
                let (mut rest, mut back) = (whole.clone(), Image::default());
                let mut count = 1;
                back.put(&Placement::NONE, whole.first().bytes()).unwrap();
                while let Some(piece) = rest.next(enough) {
                    back.put(&Placement::NONE, piece.bytes()).unwrap();
                    count += 1;
                }
                assert_eq!(back, whole);
                let least = if enough == 1 { 1 + promises + outcomes } else { 1 };
                assert!(count >= least, "{count} pieces of {promises} and {outcomes}");
            }
        }
    }

    #[test]
    fn what_is_remembered_goes_into_pieces_of_any_length_and_comes_back() {
        for (count, enough) in [(0, 1), (1, 1), (50, 1), (50, 100), (50, 1 << 20)] {
            let of = |n: u64| Remembered { db: Db(1), key: n.to_le_bytes().to_vec(), stamp: Age(n) };
            let (mut rest, mut back) = ((0..count).map(of).collect(), Image::default());
            while let Some(piece) = remembered(&mut rest, enough) {
                back.put(&Placement::NONE, piece.bytes()).unwrap();
            }
            back.remembered.sort_by_key(|record| record.stamp);
            assert_eq!(back.remembered, (0..count).map(of).collect::<Vec<_>>(), "{count} {enough}");
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        let bytes = image(0, 0).first().bytes().to_vec();
        for cut in 0..bytes.len() {
            assert!(Image::default().put(&Placement::NONE, &bytes[..cut]).is_err(), "{cut}");
        }
        let broken = Part::Prepared(vec![b"no entry".to_vec()]).to_bytes();
        assert!(
            Image::default()
                .put(&Placement::NONE, &broken)
                .unwrap_err()
                .contains("no entry of a commit engine")
        );
    }
}
