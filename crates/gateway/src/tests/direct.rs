//! Interactive transactions that the engine keeps open: what is submitted, and what ends them.

use ordain_model::args::encode;
use ordain_model::{
    Abort, Call, Db, Front, Gsn, Micros, OpenId, OutcomeBatch, OutcomeStatus, ProcedureId, RequestNo,
    SessionId, Step as StepOf, Token, Writer, system,
};

use super::{CONSULT, gateway};
use crate::{Begin, Departure, Desk, Gateway, Progress, Step, Stream, Ticket, Transaction, direct};

const COMMITTED: OutcomeStatus = OutcomeStatus::Committed;
const LOST: OutcomeStatus = OutcomeStatus::Aborted(Abort::LockRefused);
/// An encoding of a key and of the database before it, as [`system::READ`] takes them.
const KEY: [&[u8]; 2] = [&[0], b"k"];

fn begin(is_read_only: bool, session: Option<u64>) -> Box<dyn Transaction> {
    direct(Begin { is_read_only, now: Micros(1), seed: 1, session: session.map(SessionId) })
}

fn desk(ticket: u64) -> Desk<'static> {
    Desk { stream: Stream(0), ticket: Ticket(ticket), seen: &Token::NOTHING }
}

/// Calls a procedure; answers what it answers at once, if it does.
fn call(
    open: &mut Box<dyn Transaction>,
    gateway: &mut Gateway,
    (procedure, args): (ProcedureId, &[&[u8]]),
    ticket: u64,
) -> Option<Vec<u8>> {
    let (mut args, mut out) = (encode(args), Vec::new());
    let step = Step { procedure, db: Db(0), args: &mut args, bytes_max: 200 };
    match open.call(gateway, desk(ticket), step, &mut out) {
        Progress::Answered => Some(out),
        Progress::Waits => None,
    }
}

fn commit(
    open: &mut Box<dyn Transaction>,
    gateway: &mut Gateway,
    session: Option<(u64, u64)>,
) -> Option<Vec<u8>> {
    let (mut out, request) = (Vec::new(), session.map(|(of, n)| (SessionId(of), RequestNo(n))));
    match open.commit(gateway, desk(9), (Db(0), request), &mut out) {
        Progress::Answered => Some(out),
        Progress::Waits => None,
    }
}

/// A step that leaves with its call, or the transaction that is over.
type Left = (Option<(StepOf, Call)>, Option<OpenId>);

/// The steps and ends that leave.
fn leaving(gateway: &mut Gateway) -> Vec<Left> {
    let departures = std::iter::from_fn(|| gateway.flush());
    departures
        .map(|departure| match departure {
            Departure::Step(step, _, chunk) => (Some((step, chunk.txns()[0].call)), None),
            Departure::Word(_, Front::Abandon(of)) => (None, Some(of)),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Answers the transaction of a chunk, and hands that to the open one; answers the reply that it gives in its place.
fn answer(
    open: &mut Box<dyn Transaction>,
    gateway: &mut Gateway,
    chunk: u64,
    status: OutcomeStatus,
) -> Option<Vec<u8>> {
    let mut batch = OutcomeBatch::new(ordain_model::GatewayId(3));
    batch.push(ordain_model::ChunkNo(chunk), 0, Gsn(77), status, |out| out.push(1));
    let mut own = None;
    gateway.take_outcomes_with(&batch, |gateway, finished| {
        let mut out = Vec::new();
        own = open.finished(gateway, &finished, &mut out).then_some(out);
    });
    own
}

fn error(abort: Abort) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    Writer(&mut out).abort(abort);
    Some(out)
}

#[test]
fn steps_are_numbered_and_the_commit_is_the_last() {
    let (mut gateway, mut open) = (gateway(), begin(false, Some(5)));
    let write: [&[u8]; 4] = [&[0; 4], &[0], b"k", b""];
    assert_eq!(call(&mut open, &mut gateway, (system::READ, &KEY), 1), None);
    let of = OpenId { gateway: ordain_model::GatewayId(3), number: 1 };
    let step = StepOf { of, number: 1, session: Some(SessionId(5)), is_commit: false, may_write: false };
    assert_eq!(leaving(&mut gateway), [(Some((step, Call::new(system::READ, Db(0)))), None)]);
    assert_eq!(answer(&mut open, &mut gateway, 0, COMMITTED), None);
    // An error of a command is its answer, and the transaction goes on.
    let refused = call(&mut open, &mut gateway, (system::COMMIT, &write), 2);
    assert!(refused.is_some(), "its arguments are damaged");
    assert_eq!(call(&mut open, &mut gateway, (system::READ, &KEY), 3), None);
    assert_eq!(answer(&mut open, &mut gateway, 1, OutcomeStatus::Aborted(Abort::Logic)), None);
    assert!(!open.is_lost());
    leaving(&mut gateway);
    assert_eq!(commit(&mut open, &mut gateway, Some((5, 8))), None);
    let call = Call { session: Some((SessionId(5), RequestNo(8 << 8))), ..Call::new(system::COMMIT, Db(0)) };
    let step = StepOf { number: 3, is_commit: true, ..step };
    assert_eq!(leaving(&mut gateway), [(Some((step, call)), None)]);
    // The commit is on its way: whoever goes away now takes nothing back.
    open.end(&mut gateway);
    assert_eq!(leaving(&mut gateway), []);
}

#[test]
fn a_transaction_that_is_given_up_answers_why_until_it_is_over() {
    for (status, reason, own) in [
        (LOST, Abort::LockRefused, None),
        (OutcomeStatus::Busy, Abort::Unavailable, error(Abort::Unavailable)),
        (OutcomeStatus::Unknown, Abort::Unavailable, error(Abort::Unavailable)),
    ] {
        let (mut gateway, mut open) = (gateway(), begin(false, None));
        assert_eq!(call(&mut open, &mut gateway, (system::READ, &KEY), 1), None);
        leaving(&mut gateway);
        assert_eq!(answer(&mut open, &mut gateway, 0, status), own);
        assert!(open.is_lost());
        assert_eq!(call(&mut open, &mut gateway, (system::READ, &KEY), 2), error(reason));
        assert_eq!(commit(&mut open, &mut gateway, None), error(reason));
        assert_eq!(leaving(&mut gateway).len(), 1, "the engine hears that it is over");
    }
}

#[test]
fn a_step_that_was_held_is_never_submitted_once_its_client_is_gone() {
    let (mut gateway, mut open) =
        (gateway().with_backend(std::sync::Arc::new(OneAtATime)), begin(false, None));
    let before = Call::new(system::READ, Db(0));
    let view = ordain_model::View::Since(Token::NOTHING);
    gateway
        .submit_in_order(Stream(0), Ticket(1), before, view, |out| {
            KEY.iter().for_each(|arg| _ = out.push(arg))
        })
        .unwrap();
    while gateway.flush().is_some() {}
    assert_eq!(call(&mut open, &mut gateway, (system::READ, &KEY), 2), None);
    assert_eq!(leaving(&mut gateway), [], "it waits for what was sent before it");
    open.end(&mut gateway);
    leaving(&mut gateway);
    let mut batch = OutcomeBatch::new(ordain_model::GatewayId(3));
    batch.push(ordain_model::ChunkNo(0), 0, Gsn(77), COMMITTED, |_| {});
    let mut ended = Vec::new();
    gateway.take_outcomes(&batch, |finished| ended.push((finished.ticket, finished.status)));
    assert_eq!(ended, [(Ticket(1), COMMITTED), (Ticket(2), OutcomeStatus::Aborted(Abort::Logic))]);
    assert_eq!((leaving(&mut gateway), gateway.outstanding()), (Vec::new(), 0));
}

#[test]
fn what_may_not_run_is_refused_and_changes_nothing() {
    let (mut gateway, mut open) = (gateway(), begin(true, None));
    let write = {
        let mut args = Vec::new();
        let cell = ordain_model::Cell::ABSENT;
        system::commit_args(
            [].into_iter(),
            [(Db(0), &b"k"[..], &cell)],
            &mut ordain_model::ArgsBuilder::new(&mut args),
        );
        args
    };
    let words: Vec<Vec<u8>> =
        ordain_model::Args::parse(&write).unwrap().iter().map(|arg| arg.bytes.to_vec()).collect();
    let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
    let text = |answer: Option<Vec<u8>>| String::from_utf8_lossy(&answer.expect("an error")).into_owned();
    assert!(text(call(&mut open, &mut gateway, (system::COMMIT, &words), 1)).contains("READONLY"));
    assert!(text(call(&mut open, &mut gateway, (CONSULT, &KEY), 1)).contains("finds its keys first"));
    let long: [&[u8]; 2] = [&[0], &[b'k'; 300]];
    assert!(text(call(&mut open, &mut gateway, (system::READ, &long), 1)).contains("too large"));
    assert_eq!(leaving(&mut gateway), []);
    // Nothing was begun, so there is nothing to agree on.
    assert!(text(commit(&mut open, &mut gateway, None)).contains("OK"));
    // A commit of another session than the one at the beginning has another home.
    let mut open = begin(false, Some(5));
    assert_eq!(call(&mut open, &mut gateway, (system::READ, &KEY), 1), None);
    assert!(text(commit(&mut open, &mut gateway, Some((6, 1)))).contains("TXNABORT"));
    assert_eq!(leaving(&mut gateway).len(), 2, "its end is told");
}

/// Engines that take one request of a connection at a time.
#[derive(Debug)]
struct OneAtATime;

impl crate::Backend for OneAtATime {
    fn services(&self) -> crate::Services {
        crate::Services::ALL
    }

    fn begin(&self, how: Begin) -> Box<dyn Transaction> {
        direct(how)
    }

    fn tokens(&self) -> crate::Tokens<'_> {
        crate::Tokens::OfNodes
    }

    fn run_of(&self, _: ordain_model::Stamp, _: u32) -> Option<ordain_model::Stamp> {
        None
    }

    fn keeps_order(&self) -> bool {
        false
    }
}
