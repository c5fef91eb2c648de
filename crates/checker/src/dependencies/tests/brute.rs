//! The levels by their definitions, tried on every order of a few transactions. Nothing here knows of dependencies.

use std::collections::BTreeMap;

use crate::dependencies::history::{History, Observed, Op, Outcome};
use crate::dependencies::levels::{Bound, Level};

/// The values of each key in the order in which they were installed.
type State = BTreeMap<u64, Vec<u64>>;

/// True if a system of the level may show a history: with some of the transactions of unknown end, or none.
pub(super) fn allows(level: Level, history: &History) -> bool {
    allows_with(history, 0, |case| case.allows(level))
}

/// True if a serial order of a history keeps the order of real time between transactions further apart than `slack`.
pub(super) fn allows_within(slack: u64, history: &History) -> bool {
    let is_serial = |case: &Case<'_>| case.serial(Bound::Nobody, Bound::All, &mut Vec::new(), &State::new());
    allows_with(history, slack, is_serial)
}

fn allows_with(history: &History, slack: u64, is_allowed: impl Fn(&Case<'_>) -> bool) -> bool {
    let (mut known, mut unknown) = (Vec::new(), Vec::new());
    for txn in &history.txns {
        match txn.outcome {
            Outcome::Committed => known.push(txn.clone()),
            Outcome::Unknown => unknown.push(txn.clone()),
            Outcome::Aborted => {}
        }
    }
    (0..1u32 << unknown.len()).any(|chosen| {
        let more =
            unknown.iter().enumerate().filter(|(at, _)| chosen >> at & 1 == 1).map(|(_, txn)| txn.clone());
        let txns: Vec<Observed> = known.iter().cloned().chain(more).collect();
        let case = Case { history, txns: &txns, slack };
        is_allowed(&case)
    })
}

struct Case<'a> {
    history: &'a History,
    /// The transactions that have happened.
    txns: &'a [Observed],
    slack: u64,
}

/// Installs what a transaction writes: of a register the last value.
fn install(txn: &Observed, state: &mut State) {
    for (at, op) in txn.txn.ops.iter().enumerate() {
        match op {
            Op::Append { key, value } => state.entry(*key).or_default().push(*value),
            Op::Put { key, value } => {
                let is_over = |later: &Op| matches!(later, Op::Put { key: of, .. } if of == key);
                if !txn.txn.ops[at + 1..].iter().any(is_over) {
                    state.entry(*key).or_default().push(*value);
                }
            }
            _ => {}
        }
    }
}

fn keys_written(txn: &Observed) -> Vec<u64> {
    txn.txn.ops.iter().filter(|op| op.written().is_some()).map(Op::key).collect()
}

/// Whether a transaction reads this if it finds the values of keys as `found` says, by its operation and the key.
fn reads(txn: &Observed, found: impl Fn(usize, u64) -> Vec<u64>) -> bool {
    (0..txn.txn.ops.len()).all(|at| reads_at(txn, at, &found))
}

fn reads_at(txn: &Observed, at: usize, found: &impl Fn(usize, u64) -> Vec<u64>) -> bool {
    if txn.outcome != Outcome::Committed {
        return true;
    }
    let op = &txn.txn.ops[at];
    let mut all = found(at, op.key());
    all.extend(txn.txn.ops[..at].iter().filter(|before| before.key() == op.key()).filter_map(Op::written));
    match op {
        Op::Read { values, .. } => *values == all,
        Op::Get { value, .. } => *value == all.last().copied(),
        _ => true,
    }
}

impl Case<'_> {
    fn allows(&self, level: Level) -> bool {
        use Bound::{All, Nobody, Updates};
        match level {
            Level::ReadCommitted => self.read_committed(&mut Vec::new()),
            Level::ParallelSnapshot => self.parallel_snapshot(false),
            Level::SessionParallelSnapshot => self.parallel_snapshot(true),
            Level::FreshParallelSnapshot => self.parallel_snapshot(true) && self.is_fresh(),
            Level::Snapshot => self.snapshot(&mut Vec::new(), &mut Vec::new(), &mut vec![State::new()]),
            Level::Serializable => self.serial(Nobody, Nobody, &mut Vec::new(), &State::new()),
            Level::SessionSerializable => self.serial(All, Nobody, &mut Vec::new(), &State::new()),
            Level::StampsAlone => self.by_stamps(),
            Level::StampOrder => self.serial(All, Nobody, &mut Vec::new(), &State::new()) && self.by_stamps(),
            Level::SnapshotReads => self.serial(Updates, Updates, &mut Vec::new(), &State::new()),
            Level::SessionReads => self.serial(All, Updates, &mut Vec::new(), &State::new()),
            Level::StrictSerializable => self.serial(All, All, &mut Vec::new(), &State::new()),
        }
    }

    fn is_end(&self, state: &State) -> bool {
        let mut orders = self.history.orders.clone();
        orders.retain(|_, order| !order.is_empty());
        *state == orders
    }

    /// Whether one transaction must not come after another, by sessions and real time.
    fn must_precede(&self, first: usize, second: usize, sessions: Bound, time: Bound) -> bool {
        let (first, second) = (&self.txns[first], &self.txns[second]);
        let binds = |bound| match bound {
            Bound::Nobody => false,
            Bound::Updates => !keys_written(second).is_empty(),
            Bound::All => true,
        };
        let in_session = match (first.session, second.session) {
            (Some((session, place)), Some((other, later))) => {
                session == other && place < later && !first.may_be_overtaken
            }
            _ => false,
        };
        let in_time = match (first.answered, second.asked) {
            (Some(answered), Some(asked)) => asked > answered && asked - answered > self.slack,
            _ => false,
        };
        (in_session && binds(sessions)) || (in_time && binds(time))
    }

    /// Whether one after the other, in some order, they read what they have read.
    fn serial(&self, sessions: Bound, time: Bound, done: &mut Vec<usize>, state: &State) -> bool {
        if done.len() == self.txns.len() {
            return self.is_end(state);
        }
        (0..self.txns.len()).any(|next| {
            let is_free = (0..self.txns.len())
                .all(|other| done.contains(&other) || !self.must_precede(other, next, sessions, time));
            let txn = &self.txns[next];
            let held = |_, key| state.get(&key).cloned().unwrap_or_default();
            if done.contains(&next) || !is_free || !reads(txn, held) {
                return false;
            }
            let mut after = state.clone();
            install(txn, &mut after);
            done.push(next);
            let found = self.serial(sessions, time, done, &after);
            done.pop();
            found
        })
    }

    /// Whether the order of stamps is a serial order; those without one stand anywhere.
    fn by_stamps(&self) -> bool {
        fn orders(case: &Case<'_>, done: &mut Vec<usize>) -> bool {
            if done.len() == case.txns.len() {
                let mut state = State::new();
                return done.iter().all(|at| {
                    let is_right =
                        reads(&case.txns[*at], |_, key| state.get(&key).cloned().unwrap_or_default());
                    install(&case.txns[*at], &mut state);
                    is_right
                }) && case.is_end(&state);
            }
            (0..case.txns.len()).any(|next| {
                let stamp = case.txns[next].stamp;
                let is_late =
                    done.iter().any(|at| case.txns[*at].stamp.zip(stamp).is_some_and(|(a, b)| a > b));
                if done.contains(&next) || is_late {
                    return false;
                }
                done.push(next);
                let found = orders(case, done);
                done.pop();
                found
            })
        }
        orders(self, &mut Vec::new())
    }

    /// Snapshot isolation: transactions begin and commit in some order; one reads the state at its beginning and commits if
    /// nobody has written its keys since.
    fn snapshot(
        &self,
        begun: &mut Vec<(usize, usize)>,
        done: &mut Vec<usize>,
        states: &mut Vec<State>,
    ) -> bool {
        if done.len() == self.txns.len() {
            return self.is_end(&states[done.len()]);
        }
        let begins = (0..self.txns.len()).any(|next| {
            let now = done.len();
            let held = |_, key| states[now].get(&key).cloned().unwrap_or_default();
            if begun.iter().any(|(txn, _)| *txn == next) || !reads(&self.txns[next], held) {
                return false;
            }
            begun.push((next, now));
            let found = self.snapshot(begun, done, states);
            begun.pop();
            found
        });
        begins
            || begun.clone().into_iter().any(|(txn, at)| {
                let keys = keys_written(&self.txns[txn]);
                let conflicts = done[at..]
                    .iter()
                    .any(|other| keys_written(&self.txns[*other]).iter().any(|key| keys.contains(key)));
                if done.contains(&txn) || conflicts {
                    return false;
                }
                let mut state = states[done.len()].clone();
                install(&self.txns[txn], &mut state);
                states.push(state);
                done.push(txn);
                let found = self.snapshot(begun, done, states);
                done.pop();
                states.pop();
                found
            })
    }

    /// Parallel snapshot isolation: with some partial order of what is visible to whom, each reads what is visible to it,
    /// and of two that write one key one is visible to the other.
    fn parallel_snapshot(&self, sessions: bool) -> bool {
        let count = self.txns.len();
        assert!(count <= 4, "there are too many partial orders");
        let pairs: Vec<(usize, usize)> =
            (0..count).flat_map(|a| (0..count).map(move |b| (a, b))).filter(|(a, b)| a != b).collect();
        (0..1u32 << pairs.len()).any(|chosen| {
            let mut sees = [[false; 4]; 4];
            for (at, (a, b)) in pairs.iter().enumerate() {
                sees[*b][*a] = chosen >> at & 1 == 1;
            }
            let all = || (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
            let is_partial_order = all().all(|(a, b)| {
                !(sees[a][b] && sees[b][a]) && (0..count).all(|c| !(sees[a][b] && sees[b][c]) || sees[a][c])
            });
            let keeps = |(a, b)| !self.must_precede(a, b, Bound::All, Bound::Nobody) || sees[b][a];
            let conflict = |(a, b): (usize, usize)| {
                let keys = keys_written(&self.txns[b]);
                a != b
                    && keys_written(&self.txns[a]).iter().any(|key| keys.contains(key))
                    && !sees[a][b]
                    && !sees[b][a]
            };
            if !is_partial_order || (sessions && !all().all(keeps)) || all().any(conflict) {
                return false;
            }
            let state_of = |visible: Vec<usize>| {
                let mut visible = visible;
                visible.sort_by_key(|txn| sees[*txn].iter().filter(|is_seen| **is_seen).count());
                let mut state = State::new();
                visible.iter().for_each(|txn| install(&self.txns[*txn], &mut state));
                state
            };
            (0..count).all(|reader| {
                let state = state_of((0..count).filter(|txn| sees[reader][*txn]).collect());
                reads(&self.txns[reader], |_, key| state.get(&key).cloned().unwrap_or_default())
            }) && self.is_end(&state_of((0..count).collect()))
        })
    }

    /// Whether first reads have all that was answered before.
    fn is_fresh(&self) -> bool {
        self.txns.iter().filter(|txn| txn.outcome == Outcome::Committed).all(|txn| {
            let is_update = !keys_written(txn).is_empty();
            let site = |op: &Op| self.history.sites.get(&op.key()).copied().unwrap_or(0);
            // A register that the transaction has put itself is its own.
            let has_put = |at: usize, key| {
                txn.txn.ops[..at].iter().any(|op| matches!(op, Op::Put { key: of, .. } if *of == key))
            };
            let reads: Vec<(usize, &Op)> = txn.txn.ops.iter().enumerate().collect();
            let is_read = |(at, op): &&(usize, &Op)| op.written().is_none() && !has_put(*at, op.key());
            reads.iter().filter(is_read).all(|(at, op)| {
                let mut before = reads[..*at].iter().filter(is_read);
                // An update may look first at what it appends to.
                let looks = reads[..*at].iter().any(|(_, other)| matches!(other, Op::Append { .. }));
                let is_first = !looks && !before.any(|(_, other)| is_update || site(other) == site(op));
                let order = &self.history.orders.get(&op.key()).cloned().unwrap_or_default();
                let place = |value: &u64| order.iter().position(|other| other == value);
                let sees_until = match op {
                    Op::Read { values, .. } => values.last().and_then(place),
                    Op::Get { value, .. } => value.as_ref().and_then(place),
                    _ => None,
                };
                !is_first
                    || self.txns.iter().all(|writer| {
                        let is_before =
                            writer.answered.zip(txn.asked).is_some_and(|(done, asked)| done < asked);
                        let of_key = |op: &&Op| order.contains(&op.written().unwrap_or(0));
                        let last = writer.txn.ops.iter().rev().filter(of_key).find(|w| w.key() == op.key());
                        !is_before
                            || last.is_none_or(|last| {
                                last.written().and_then(|value| place(&value)) <= sees_until
                            })
                    })
            })
        })
    }

    /// Read committed: transactions commit in some order; each read is of the state after some commit before its own, and
    /// of a key that its transaction has written already, of the state at its own commit.
    fn read_committed(&self, done: &mut Vec<usize>) -> bool {
        if done.len() == self.txns.len() {
            let mut state = State::new();
            done.iter().for_each(|txn| install(&self.txns[*txn], &mut state));
            return self.is_end(&state);
        }
        (0..self.txns.len()).any(|next| {
            if done.contains(&next) {
                return false;
            }
            let txn = &self.txns[next];
            let mut states = vec![State::new()];
            for other in &*done {
                let mut state = states[states.len() - 1].clone();
                install(&self.txns[*other], &mut state);
                states.push(state);
            }
            let is_right = (0..txn.txn.ops.len()).all(|at| {
                let key = txn.txn.ops[at].key();
                let has_written =
                    txn.txn.ops[..at].iter().any(|op| op.key() == key && op.written().is_some());
                let least = if has_written { states.len() - 1 } else { 0 };
                (least..states.len())
                    .any(|of| reads_at(txn, at, &|_, key| states[of].get(&key).cloned().unwrap_or_default()))
            });
            if !is_right {
                return false;
            }
            done.push(next);
            let found = self.read_committed(done);
            done.pop();
            found
        })
    }
}
