//! Each anomaly by name in a hand-written history: refused by the levels that forbid it, and by no other.

use super::{A, B, C, append, base, get, history, put, read, txn};
use crate::dependencies::history::{History, Observed, Outcome};
use crate::dependencies::levels::{Anomaly, Bound, Level};
use crate::dependencies::{findings, judge, judge_within};

/// A history with one anomaly, and whether the order that it breaks leads into a transaction that writes.
type Row = (Anomaly, bool, History);

/// Transactions of one session, one after the other.
fn session<const N: usize>(session: u64, txns: [Observed; N]) -> [Observed; N] {
    let mut place = 0;
    txns.map(|txn| {
        place += 1;
        txn.of_session(session, place)
    })
}

fn alone() -> Vec<Row> {
    vec![
        (Anomaly::LostWrite, true, history(&[txn(1, &[append(1, A)])], &[])),
        (Anomaly::OwnWrites, true, history(&[txn(1, &[append(1, A), read(1, &[])])], &[(1, &[A])])),
        (
            Anomaly::AbortedRead,
            true,
            history(&[txn(1, &[append(1, A)]), txn(2, &[read(1, &[A, base(9)])])], &[(1, &[A])]),
        ),
        (Anomaly::AbortedRead, true, history(&[txn(2, &[get(1, base(9))])], &[])),
        (
            Anomaly::IntermediateRead,
            true,
            history(
                &[txn(1, &[append(1, A), append(1, A + 1)]), txn(2, &[read(1, &[A])])],
                &[(1, &[A, A + 1])],
            ),
        ),
        (
            Anomaly::IntermediateRead,
            true,
            history(&[txn(1, &[put(1, A), put(1, A + 1)]), txn(2, &[get(1, A)])], &[(1, &[A + 1])]),
        ),
        (
            Anomaly::OrderOfWrites,
            true,
            history(&[txn(1, &[append(1, A), append(1, A + 1)])], &[(1, &[A + 1, A])]),
        ),
        (
            Anomaly::OrderOfWrites,
            true,
            history(
                &[txn(1, &[append(1, A)]), txn(2, &[append(1, B)]), txn(3, &[read(1, &[B])])],
                &[(1, &[A, B])],
            ),
        ),
    ]
}

fn on_data() -> Vec<Row> {
    let writer = || txn(1, &[append(1, A)]);
    vec![
        (
            Anomaly::WriteCycle,
            true,
            history(
                &[txn(1, &[append(1, A), append(2, A + 1)]), txn(2, &[append(1, B), append(2, B + 1)])],
                &[(1, &[A, B]), (2, &[B + 1, A + 1])],
            ),
        ),
        (
            Anomaly::InformationCycle,
            true,
            history(
                &[txn(1, &[append(1, A), read(2, &[B])]), txn(2, &[append(2, B), read(1, &[A])])],
                &[(1, &[A]), (2, &[B])],
            ),
        ),
        (
            Anomaly::LostUpdate,
            true,
            history(
                &[txn(1, &[read(1, &[]), append(1, A + 1)]), txn(2, &[read(1, &[]), append(1, B + 1)])],
                &[(1, &[A + 1, B + 1])],
            ),
        ),
        (
            Anomaly::LostUpdate,
            true,
            history(
                &[txn(1, &[get(1, 0), put(1, A + 1)]), txn(2, &[get(1, 0), put(1, B + 1)])],
                &[(1, &[A + 1, B + 1])],
            ),
        ),
        (
            Anomaly::FuzzyRead,
            true,
            history(&[writer(), txn(2, &[read(1, &[]), read(1, &[A])])], &[(1, &[A])]),
        ),
        (
            Anomaly::FracturedRead,
            true,
            history(
                &[txn(1, &[append(1, A), append(2, A + 1)]), txn(2, &[read(1, &[]), read(2, &[A + 1])])],
                &[(1, &[A]), (2, &[A + 1])],
            ),
        ),
        (
            Anomaly::ReadSkew,
            true,
            history(
                &[
                    writer(),
                    txn(2, &[read(1, &[A]), append(2, B + 1)]),
                    txn(3, &[read(2, &[B + 1]), read(1, &[])]),
                ],
                &[(1, &[A]), (2, &[B + 1])],
            ),
        ),
        (
            Anomaly::LongFork,
            true,
            history(
                &[
                    writer(),
                    txn(2, &[append(2, B)]),
                    txn(3, &[read(1, &[A]), read(2, &[])]),
                    txn(4, &[read(1, &[]), read(2, &[B])]),
                ],
                &[(1, &[A]), (2, &[B])],
            ),
        ),
        (
            Anomaly::WriteSkew,
            true,
            history(
                &[txn(1, &[read(1, &[]), append(2, A + 1)]), txn(2, &[read(2, &[]), append(1, B + 1)])],
                &[(1, &[B + 1]), (2, &[A + 1])],
            ),
        ),
    ]
}

fn on_sessions() -> Vec<Row> {
    let [write, misses] = session(1, [txn(1, &[append(1, A)]), txn(2, &[read(1, &[])])]);
    let [_, misses_and_writes] = session(1, [txn(1, &[]), txn(2, &[read(1, &[]), append(2, B + 1)])]);
    let [first, second] = session(1, [txn(1, &[append(1, A)]), txn(2, &[append(1, B)])]);
    let other = txn(1, &[append(1, A), append(2, A + 1)]);
    let [saw, follows] = session(1, [txn(2, &[read(1, &[A])]), txn(3, &[append(2, C)])]);
    let [_, unsees] = session(1, [txn(2, &[]), txn(3, &[read(1, &[])])]);
    let [_, unsees_and_writes] = session(1, [txn(2, &[]), txn(3, &[read(1, &[]), append(3, C + 1)])]);
    let [one, then_two] = session(1, [txn(3, &[read(1, &[A])]), txn(4, &[read(2, &[])])]);
    let [two, then_one] = session(2, [txn(5, &[read(2, &[B])]), txn(6, &[read(1, &[])])]);
    let [wrote, then_read] = session(1, [txn(2, &[append(2, B)]), txn(3, &[read(1, &[])])]);
    let fork = [txn(1, &[append(1, A)]), txn(2, &[append(2, B)]), one, then_two, two, then_one];
    let skewed = txn(1, &[read(2, &[]), append(1, A + 1)]);
    let single = txn(1, &[append(1, A)]);
    vec![
        (Anomaly::MonotonicWrites, true, history(&[first, second], &[(1, &[B, A])])),
        (
            Anomaly::WritesFollowReads,
            true,
            history(&[other, saw.clone(), follows], &[(1, &[A]), (2, &[C, A + 1])]),
        ),
        (Anomaly::ReadYourWrites, false, history(&[write.clone(), misses], &[(1, &[A])])),
        (Anomaly::ReadYourWrites, true, history(&[write, misses_and_writes], &[(1, &[A]), (2, &[B + 1])])),
        (Anomaly::MonotonicReads, false, history(&[single.clone(), saw.clone(), unsees], &[(1, &[A])])),
        (
            Anomaly::MonotonicReads,
            true,
            history(&[single, saw, unsees_and_writes], &[(1, &[A]), (3, &[C + 1])]),
        ),
        (Anomaly::SessionFork, false, history(&fork, &[(1, &[A]), (2, &[B])])),
        (Anomaly::SessionSkew, false, history(&[skewed, wrote, then_read], &[(1, &[A + 1]), (2, &[B])])),
    ]
}

fn on_time_and_stamps() -> Vec<Row> {
    let write = || txn(1, &[append(1, A)]).between(0, Some(1));
    let later = txn(2, &[append(1, B)]).between(2, Some(3));
    let stale = txn(2, &[read(1, &[])]).between(2, Some(3));
    let stale_and_writes = txn(2, &[read(1, &[]), append(2, B + 1)]).between(2, Some(3));
    let stamped = [txn(1, &[append(1, A)]).stamped(20), txn(2, &[append(1, B)]).stamped(10)];
    let early = [txn(1, &[append(1, A)]).stamped(20), txn(2, &[read(1, &[A])]).stamped(10)];
    let late = [txn(1, &[append(1, A)]).stamped(10), txn(2, &[read(1, &[])]).stamped(20)];
    vec![
        (Anomaly::RealTime, true, history(&[write(), later], &[(1, &[B, A])])),
        (Anomaly::StaleRead, false, history(&[write(), stale], &[(1, &[A])])),
        (Anomaly::StaleRead, true, history(&[write(), stale_and_writes], &[(1, &[A]), (2, &[B + 1])])),
        (Anomaly::StampOrder, true, history(&stamped, &[(1, &[A, B])])),
        (Anomaly::StampOrder, true, history(&early, &[(1, &[A])])),
        (Anomaly::StampOrder, true, history(&late, &[(1, &[A])])),
    ]
}

#[test]
fn every_anomaly_is_refused_by_the_levels_that_forbid_it_and_by_no_other() {
    let rows = [alone(), on_data(), on_sessions(), on_time_and_stamps()].concat();
    for anomaly in Anomaly::ALL {
        assert!(rows.iter().any(|(of, ..)| *of == anomaly), "no history shows {}", anomaly.name());
    }
    for (anomaly, into_update, history) in rows {
        for level in Level::ALL {
            let is_refused = match level.forbids(anomaly) {
                Bound::Nobody => false,
                Bound::Updates => into_update,
                Bound::All => true,
            };
            let verdict = judge(level, &history);
            assert_eq!(verdict.is_err(), is_refused, "{anomaly:?} at {level:?}: {verdict:?}");
            let Err(finding) = verdict else { continue };
            // Where real time binds, a stale read breaks that.
            let is_named = finding.anomaly == anomaly
                || (anomaly == Anomaly::StaleRead && finding.anomaly == Anomaly::RealTime);
            assert!(is_named, "{anomaly:?} at {level:?}: {finding}");
            assert_eq!(findings(level, &history).worst(), Some(&*finding));
            assert!(finding.cycle.iter().all(|edge| finding.txns.contains(&edge.from)));
            let next = finding.cycle.iter().cycle().skip(1);
            assert!(finding.cycle.iter().zip(next).all(|(edge, next)| edge.to == next.from), "{finding:?}");
        }
    }
}

/// T1 is answered at 10, T2 asked at 25 does not see it: 15 is the least bound within which that is no inversion.
#[test]
fn an_inversion_is_one_beyond_its_bound_alone() {
    let stale = [txn(1, &[append(1, A)]).between(0, Some(10)), txn(2, &[read(1, &[])]).between(25, Some(30))];
    let history = history(&stale, &[(1, &[A])]);
    for (bound, anomaly) in [(0, Some(Anomaly::RealTime)), (14, Some(Anomaly::RealTime)), (15, None)] {
        let found = judge_within(bound, &history).err().map(|finding| finding.anomaly);
        assert_eq!(found, anomaly, "within {bound}");
    }
}

#[test]
fn a_finding_names_a_shortest_cycle_and_its_transactions() {
    let text = |history: &History| judge(Level::StrictSerializable, history).unwrap_err().text;
    let data = on_data();
    for (anomaly, expected) in [
        (Anomaly::LostUpdate, "T0.2 -rw 1-> T0.1 -ww 1-> T0.2"),
        (Anomaly::FuzzyRead, "T0.2 -rw 1-> T0.1 -wr 1-> T0.2"),
        (Anomaly::FracturedRead, "T0.2 -rw 1-> T0.1 -wr 2-> T0.2"),
        (Anomaly::ReadSkew, "T0.3 -rw 1-> T0.1 -wr 1-> T0.2 -wr 2-> T0.3"),
        (Anomaly::WriteSkew, "T0.1 -rw 1-> T0.2 -rw 2-> T0.1"),
    ] {
        let (.., history) = data.iter().find(|(of, ..)| *of == anomaly).unwrap();
        assert_eq!(text(history), expected);
    }
    // Instants are left out of a cycle in real time.
    let real_time = &on_time_and_stamps()[0].2;
    assert_eq!(text(real_time), "T0.1 -rt-> T0.2 -ww 1-> T0.1");
    let finding = judge(Level::StrictSerializable, real_time).unwrap_err();
    assert_eq!((finding.txns, finding.cycle.len()), (vec![0, 1], 2));
}

#[test]
fn a_serial_history_has_nothing_wrong() {
    let txns = [
        txn(1, &[append(1, A), append(1, A + 1), read(1, &[A, A + 1])]),
        txn(2, &[read(1, &[A, A + 1]), append(2, B + 1), read(3, &[])]),
        txn(3, &[read(1, &[A, A + 1]), read(2, &[B + 1])]),
    ];
    let history = history(&session(1, txns), &[(1, &[A, A + 1]), (2, &[B + 1])]);
    Level::ALL.iter().for_each(|level| assert_eq!(judge(*level, &history), Ok(()), "{level:?}"));
}

#[test]
fn lost_and_doubled_and_phantom_writes_are_told_apart() {
    let txns = [txn(1, &[append(1, A)]), txn(2, &[append(1, B)])];
    let text = |orders: &[(u64, &[u64])]| {
        let finding = judge(Level::ReadCommitted, &history(&txns, orders)).unwrap_err();
        assert_eq!(finding.anomaly, Anomaly::LostWrite);
        finding.text
    };
    assert_eq!(judge(Level::StrictSerializable, &history(&txns, &[(1, &[A, B])])), Ok(()));
    assert!(text(&[(1, &[B])]).contains("a write of T0.1 to 1 is lost"));
    assert!(text(&[(1, &[A, B, base(9)])]).contains("T0.9, which aborted"));
    assert!(text(&[(1, &[A, B, base(8)])]).contains("T0.8, which never committed"));
    assert!(text(&[(1, &[A, B, A])]).contains("of T0.1 is there twice"));
    assert!(text(&[(1, &[A]), (2, &[B])]).contains("a write of T0.2 to 1 is among those to 2"));
    let twice = [txns[0].clone(), txns[0].clone()];
    let finding = judge(Level::ReadCommitted, &history(&twice, &[(1, &[A])])).unwrap_err();
    assert!(finding.text.contains("two transactions claim"), "{finding}");
}

#[test]
fn what_is_unknown_has_happened_as_a_whole_or_not_at_all() {
    let unknown = |ops: &[_]| Observed::new(txn(1, ops).txn, Outcome::Unknown);
    let both = unknown(&[append(1, A), append(2, A + 1)]).between(4, None).of_session(1, 2);
    let verdict = |txns: &[Observed], orders: &[(u64, &[u64])]| {
        judge(Level::StrictSerializable, &history(txns, orders)).map_err(|finding| finding.anomaly)
    };
    let alone = std::slice::from_ref(&both);
    assert_eq!(verdict(alone, &[]), Ok(()));
    assert_eq!(verdict(alone, &[(1, &[A]), (2, &[A + 1])]), Ok(()));
    assert_eq!(verdict(alone, &[(1, &[A])]), Err(Anomaly::LostWrite));
    // What it read is not known.
    assert_eq!(verdict(&[unknown(&[read(1, &[B]), append(1, A + 1)])], &[(1, &[A + 1])]), Ok(()));
    // It has not happened before it was asked, nor before what its session had asked for.
    let early = txn(2, &[read(1, &[A])]).between(1, Some(3));
    let all: [(u64, &[u64]); 2] = [(1, &[A]), (2, &[A + 1])];
    assert_eq!(verdict(&[both.clone(), early.clone()], &all), Err(Anomaly::RealTime));
    assert_eq!(verdict(&[both.clone(), early.between(1, Some(5))], &all), Ok(()));
    let before = txn(2, &[read(1, &[A])]).of_session(1, 1);
    assert_eq!(verdict(&[both, before], &all), Err(Anomaly::WritesFollowReads));
}

#[test]
fn stamps_give_the_order_of_registers() {
    let mut history = history(
        &[
            txn(1, &[put(1, A), put(1, A + 1)]).stamped(7),
            txn(2, &[put(1, B)]).stamped(5),
            txn(3, &[get(1, B)]).stamped(6),
        ],
        &[],
    );
    history.order_by_stamps();
    assert_eq!(history.orders, [(1, vec![B, A + 1])].into());
    assert_eq!(judge(Level::StampOrder, &history), Ok(()));
    history.txns[2].stamp = Some(8);
    assert_eq!(judge(Level::StampOrder, &history).unwrap_err().anomaly, Anomaly::StampOrder);
}

#[test]
fn first_reads_are_fresh_at_each_site() {
    let write = |n: u64, key| txn(n, &[append(key, base(n))]).between(0, Some(1));
    let reader = |ops: &[_]| txn(3, ops).between(2, Some(3));
    let verdict = |reader: Observed, sites: &[(u64, u64)]| {
        let mut history = history(&[write(1, 1), write(2, 2), reader], &[(1, &[A]), (2, &[B])]);
        history.sites = sites.iter().copied().collect();
        judge(Level::FreshParallelSnapshot, &history).map_err(|finding| finding.anomaly)
    };
    let stale = [read(1, &[A]), read(2, &[])];
    assert_eq!(verdict(reader(&stale), &[]), Ok(()));
    assert_eq!(verdict(reader(&stale), &[(2, 1)]), Err(Anomaly::StaleRead));
    // Of one that writes only the very first read is fresh, and that may be what it appends to.
    let appends = [append(3, C + 2), read(2, &[])];
    let ops = [write(1, 1), write(2, 2), reader(&appends)];
    let appending = super::history(&ops, &[(1, &[A]), (2, &[B]), (3, &[C + 2])]);
    assert_eq!(judge(Level::FreshParallelSnapshot, &appending), Ok(()));
    let update = [read(1, &[A]), read(2, &[]), append(3, C + 2)];
    let mut history =
        history(&[write(1, 1), write(2, 2), reader(&update)], &[(1, &[A]), (2, &[B]), (3, &[C + 2])]);
    history.sites = [(2, 1)].into();
    assert_eq!(judge(Level::FreshParallelSnapshot, &history), Ok(()));
}
