//! Serializability by final stamps as naively as can be: all that has committed, executed again in the order of its stamps.

use std::collections::BTreeMap;

/// A key of a participant, or all of its keys for `None`.
pub(crate) type Place = (usize, Option<u8>);

/// True if an access to the one is an access to the other.
fn overlap(a: Place, b: Place) -> bool {
    a.0 == b.0 && (a.1 == b.1 || a.1.is_none() || b.1.is_none())
}

/// A transaction that has committed.
#[derive(Clone, Debug)]
pub(crate) struct Committed {
    /// Tells writers apart, whose stamps may be equal.
    pub(crate) number: u64,
    pub(crate) stamp: u64,
    /// The writer that each read has seen, if there was a content. A read of a whole table is one of each key.
    pub(crate) reads: Vec<(Place, u8, Option<u64>)>,
    /// The places that are written, and with a content or not. That of a whole table comes first, and clears it.
    pub(crate) writes: BTreeMap<Place, Option<u64>>,
}

impl Committed {
    fn conflicts_with(&self, other: &Committed) -> bool {
        let writes_into = |a: &Committed, b: &Committed| {
            a.writes.keys().any(|written| {
                let read = b.reads.iter().map(|(place, ..)| place);
                read.chain(b.writes.keys()).any(|place| overlap(*written, *place))
            })
        };
        writes_into(self, other) || writes_into(other, self)
    }
}

/// All transactions that have committed, over all terms.
#[derive(Debug, Default)]
pub(crate) struct History(Vec<Committed>);

impl History {
    pub(crate) fn add(&mut self, committed: Committed) {
        self.0.push(committed);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Executes all in the order of stamps, and answers the writers of the contents that are left. Each read sees the latest write with a
    /// smaller stamp, and only transactions that do not conflict have the same one.
    pub(crate) fn replay(&self) -> BTreeMap<(usize, u8), u64> {
        let mut all: Vec<&Committed> = self.0.iter().collect();
        all.sort_by_key(|committed| committed.stamp);
        for (n, one) in all.iter().enumerate() {
            let ties = all[n + 1..].iter().take_while(|other| other.stamp == one.stamp);
            for other in ties {
                assert!(!one.conflicts_with(other), "one stamp for two that conflict: {one:?}, {other:?}");
            }
        }
        let mut contents = BTreeMap::new();
        for Committed { number, stamp, reads, writes } in all {
            for ((at, _), key, writer) in reads {
                let expected = contents.get(&(*at, *key)).copied();
                assert_eq!(*writer, expected, "{number} at {stamp} has read key {key} of participant {at}");
            }
            for ((at, key), writer) in writes {
                match (key, writer) {
                    (None, _) => contents.retain(|(other, _), _| other != at),
                    (Some(key), Some(writer)) => _ = contents.insert((*at, *key), *writer),
                    (Some(key), None) => _ = contents.remove(&(*at, *key)),
                }
            }
        }
        contents
    }
}
