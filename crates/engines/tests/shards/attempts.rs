//! Several attempts at one request of a session whose keys are found by reading: what is found differs from one attempt to the
//! next, the answer does not.

use ordain_model::args::encode;
use ordain_model::{Abort, Call, Db, Limits, OutcomeStatus, RequestNo, SessionId};

use crate::random::command;
use crate::support::procedures::TAKE;
use crate::support::{Bench, Options, SCHEDULINGS, render};

const LIMITS: Limits = Limits { reply: 200, carried: 200 };

fn everywhere(test: impl Fn(&mut Bench)) {
    for scheduling in SCHEDULINGS {
        for shards in [1, 3] {
            let mut bench = Bench::new(Options { scheduling, shards, limits: LIMITS, ..Options::default() });
            test(&mut bench);
            bench.verify();
        }
    }
}

fn set(bench: &mut Bench, key: &[u8], value: &[u8]) {
    let (procedure, db, args) = command(&[b"set", key, value], Db(0));
    assert_eq!(render(&bench.ask(Call::new(procedure, db), &args).reply), "OK");
}

fn get(bench: &mut Bench, key: &[u8]) -> String {
    let (procedure, db, args) = command(&[b"get", key], Db(0));
    render(&bench.ask(Call::new(procedure, db), &args).reply)
}

/// Takes what `p` points to, as a session's request of a number, or as nobody's.
fn take(bench: &mut Bench, number: Option<u64>) -> (OutcomeStatus, String) {
    let session = number.map(|number| (SessionId(1), RequestNo(number << 8)));
    let answer = bench.ask(Call { session, ..Call::new(TAKE, Db(0)) }, &encode(&[b"p"]));
    (answer.status, render(&answer.reply))
}

#[test]
fn a_retry_that_finds_nothing_to_write_is_answered_what_was_written() {
    everywhere(|bench| {
        set(bench, b"p", b"here");
        let first = take(bench, Some(1));
        assert_eq!(first, (OutcomeStatus::Committed, "\"1\"".into()));
        assert_eq!(take(bench, Some(1)), first);
        // To others, and as another request, it is as it is.
        assert_eq!(take(bench, None).1, "nil");
        assert_eq!(take(bench, Some(2)).1, "nil");
        assert_eq!(get(bench, b"here"), "\"1\"");
    });
}

#[test]
fn a_retry_that_finds_something_to_write_writes_nothing() {
    everywhere(|bench| {
        assert_eq!(take(bench, Some(1)).1, "nil");
        set(bench, b"p", b"here");
        assert_eq!(take(bench, Some(1)).1, "nil");
        assert_eq!(get(bench, b"p"), "\"here\"");
        assert_eq!(take(bench, Some(2)).1, "\"1\"");
    });
}

#[test]
fn a_retry_that_cannot_be_planned_is_answered_what_was_written() {
    everywhere(|bench| {
        set(bench, b"p", b"here");
        let first = take(bench, Some(1));
        for unplannable in [&b"!"[..], &[b'v'; 300]] {
            set(bench, b"p", unplannable);
            assert_eq!(take(bench, Some(1)), first);
        }
        assert_eq!(get(bench, b"here"), "\"1\"");
    });
}

#[test]
fn a_request_that_could_not_be_planned_stays_refused() {
    everywhere(|bench| {
        let refusals = [
            (&b"!"[..], "(ERR not this one)"),
            (&[b'v'; 300], "(ERR the records that the request reads first"),
        ];
        for (number, (unplannable, refusal)) in (1..).zip(refusals) {
            set(bench, b"p", unplannable);
            let (status, text) = take(bench, None);
            assert!(status == OutcomeStatus::Aborted(Abort::Logic) && text.starts_with(refusal), "{text}");
            let first = take(bench, Some(number));
            assert!(first.1.starts_with(refusal), "{first:?}");
            set(bench, b"p", b"here");
            assert_eq!(take(bench, Some(number)), first);
            assert_eq!(get(bench, b"here"), "nil");
        }
    });
}
