//! A transaction in bytes: how it is written, which replies it has, and what they say of it.

use std::collections::VecDeque;

use ordain_checker::RequestId;
use ordain_checker::dependencies::Txn;
use ordain_model::{Micros, Random};
use ordain_resp::client::{Reply, write_command};

/// The script of transactions that are one: for each key the bytes to append, or none to read it.
pub(super) const SCRIPT: &str = "local out = {} for i, key in ipairs(KEYS) do \
     if ARGV[i] == '' then out[i] = redis.call('GET', key) or '' \
     else out[i] = redis.call('APPEND', key, ARGV[i]) end end return out";
/// A script whose answer is drawn.
pub(super) const DRAWS: &str = "return math.random(1000000)";
/// The user who may not append.
const LIMITED: &[u8] = b"limited";
/// The name of the function that does the same.
const FUNCTION: &str = "sim_append";

/// The library that has the function.
pub(super) fn library() -> String {
    format!("#!lua name=simulated\nredis.register_function('{FUNCTION}', function(KEYS, ARGV) {SCRIPT} end)")
}

/// An operation on a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ListOp {
    pub(super) list: u64,
    pub(super) appends: bool,
}

/// The key of a list.
pub(crate) fn list_key(list: u64) -> Vec<u8> {
    format!("l:{list}").into_bytes()
}

/// The way in which a transaction is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// One command, which is one operation.
    Plain,
    /// MULTI and EXEC.
    Multi,
    /// MULTI and DISCARD.
    Discard,
    /// EVAL.
    Eval,
    /// EVALSHA of the script that was loaded under this name.
    EvalSha(Vec<u8>),
    /// FCALL of the function that was loaded.
    Call,
    /// EVAL as a user who may not append.
    Limited,
}

/// A reply that is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// A simple string, such as OK or QUEUED.
    Status(&'static str),
    /// The text that was sent.
    Echo(Vec<u8>),
    /// The end of one operation.
    Op(usize),
    /// The ends of all operations together; of a block also nil, if something was watched.
    All,
    /// A block's reply with the end of the last operation alone.
    Last,
    /// Whatever is no error.
    Value,
    /// Anything, errors too: it says nothing of the transaction.
    Anything,
}

/// Why a reply is none that the command can have.
#[derive(Debug)]
pub(super) struct Unexpected(pub(super) String);

/// How a transaction has ended, as far as its replies tell.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has, with what is encoded here: a transaction of appends and reads.
    Committed(Vec<u8>),
    /// It had no effect: the text of an error, or nothing for a block whose watched keys have changed.
    Aborted(Vec<u8>),
    /// Nobody can tell.
    Unknown,
}

/// A transaction that was sent.
#[derive(Debug)]
pub(super) struct Unit {
    /// Its place in the history; none of what is no transaction.
    pub(super) request: Option<RequestId>,
    /// The name of the transaction.
    pub(super) base: u64,
    pub(super) ops: Vec<ListOp>,
    /// The replies that it is still owed.
    pub(super) expected: VecDeque<Expected>,
    results: Vec<Option<Reply>>,
    /// The last reply that is of no operation.
    pub(super) other: Option<Reply>,
    /// The first error among its replies.
    pub(super) error: Option<Vec<u8>>,
    is_nil: bool,
    pub(super) kind: Kind,
}

/// A transaction that looks for two keys which end together: they are written first, both by one script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pair {
    /// The common part of the keys' names.
    pub(super) keys: String,
    /// Their time to live.
    pub(super) lives_ms: u64,
    /// The transaction is begun READONLY.
    pub(super) is_read_only: bool,
    /// The step that was sent last.
    step: PairStep,
    /// The answers to PTTL.
    pub(super) left: [Option<Reply>; 2],
}

/// A step of looking for two keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PairStep {
    Write,
    Begin,
    First,
    Second,
    End,
}

/// Writes two keys with one time to live.
const WRITE_PAIR: &str = "for _, key in ipairs(KEYS) do redis.call('SET', key, 'v', 'PX', ARGV[1]) end \
     return redis.status_reply('OK')";

impl Pair {
    pub(super) const fn new(keys: String, lives_ms: u64, is_read_only: bool) -> Pair {
        Pair { keys, lives_ms, is_read_only, step: PairStep::Write, left: [None, None] }
    }

    fn key(&self, which: &str) -> Vec<u8> {
        format!("{}{which}", self.keys).into_bytes()
    }

    fn begin(&self, out: &mut Vec<u8>) {
        let (first, second, ms) = (self.key("a"), self.key("b"), self.lives_ms.to_string());
        write_command(&[b"EVAL", WRITE_PAIR.as_bytes(), b"2", &first, &second, ms.as_bytes()], out);
    }

    /// Sends the next step, given what the last one was answered; answers which reply that will have.
    fn go_on(&mut self, answer: Option<Reply>, has_failed: bool, out: &mut Vec<u8>) -> Option<Expected> {
        use PairStep as P;
        if has_failed {
            let is_open = matches!(self.step, P::First | P::Second);
            self.step = P::End;
            return is_open.then(|| {
                write_command(&[b"TXN.ABORT"], out);
                Expected::Anything
            });
        }
        let (step, expected) = match self.step {
            P::Write => {
                let words: &[&[u8]] =
                    if self.is_read_only { &[b"TXN.BEGIN", b"READONLY"] } else { &[b"TXN.BEGIN"] };
                write_command(words, out);
                (P::Begin, Expected::Status("OK"))
            }
            P::Begin => {
                write_command(&[b"PTTL", &self.key("a")], out);
                (P::First, Expected::Value)
            }
            P::First => {
                self.left[0] = answer;
                write_command(&[b"PTTL", &self.key("b")], out);
                (P::Second, Expected::Value)
            }
            P::Second => {
                self.left[1] = answer;
                write_command(&[b"TXN.COMMIT"], out);
                (P::End, Expected::Value)
            }
            P::End => return None,
        };
        self.step = step;
        Some(expected)
    }
}

/// What a unit is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A transaction of appends and reads, written at once.
    Whole,
    /// One that appends as a user who may not: it has to be refused.
    Refused,
    /// One that reads a list and appends to it if it has not changed: the keys are watched and read first.
    CompareAndSet {
        /// The block was sent.
        is_sent: bool,
    },
    /// One between TXN.BEGIN and TXN.COMMIT or TXN.ABORT, of which so many operations were sent.
    Interactive {
        sent: usize,
        /// It is to be aborted.
        aborts: bool,
        /// Its end was sent.
        is_over: bool,
    },
    /// Nothing but its replies.
    Word,
    /// The script was loaded.
    Script,
    /// The function was loaded.
    Function,
    /// A key with a limited time was written, under this number.
    Write(usize),
    /// It was looked for, at that time.
    Look(usize, Micros),
    /// Two keys with one time to live were written and looked for.
    Pair(Pair),
    /// A key was written or removed: its change of this number.
    Change(String, usize),
    /// A step of an iteration.
    Scan,
}

impl Unit {
    pub(super) fn new(base: u64, ops: Vec<ListOp>) -> Unit {
        let results = vec![None; ops.len()];
        Unit {
            request: None,
            base,
            ops,
            expected: VecDeque::new(),
            results,
            other: None,
            error: None,
            is_nil: false,
            kind: Kind::Whole,
        }
    }

    /// A command without a transaction, which has one reply.
    pub(super) fn alone(kind: Kind, expected: Expected) -> Unit {
        Unit { expected: [expected].into(), kind, ..Unit::new(0, Vec::new()) }
    }

    /// Goes on with a transaction that takes several steps, once all replies to the last one are there. False if there is
    /// nothing more to send.
    pub(super) fn go_on(&mut self, out: &mut Vec<u8>) -> bool {
        match self.kind.clone() {
            Kind::CompareAndSet { is_sent: false } if self.error.is_none() => {
                self.kind = Kind::CompareAndSet { is_sent: true };
                write_command(&[b"MULTI"], out);
                self.write_op(1, out);
                write_command(&[b"EXEC"], out);
                self.expected.extend([Expected::Status("OK"), Expected::Status("QUEUED"), Expected::Last]);
                true
            }
            Kind::CompareAndSet { is_sent: false } => {
                // Nothing was begun.
                self.error = Some(b"TXNABORT not begun".to_vec());
                false
            }
            Kind::Interactive { is_over: false, sent, aborts } => {
                let has_failed = self.error.is_some();
                if !has_failed && sent < self.ops.len() {
                    self.kind = Kind::Interactive { sent: sent + 1, aborts, is_over: false };
                    self.write_op(sent, out);
                    self.expected.push_back(Expected::Op(sent));
                    return true;
                }
                self.kind = Kind::Interactive { sent, aborts, is_over: true };
                if has_failed || aborts {
                    self.error = Some(b"TXNABORT not committed".to_vec());
                    write_command(&[b"TXN.ABORT"], out);
                    self.expected.push_back(Expected::Anything);
                } else {
                    write_command(&[b"TXN.COMMIT"], out);
                    self.expected.push_back(Expected::Value);
                }
                true
            }
            Kind::Pair(mut pair) => {
                let next = pair.go_on(self.other.take(), self.error.is_some(), out);
                self.kind = Kind::Pair(pair);
                let goes_on = next.is_some();
                self.expected.extend(next);
                goes_on
            }
            _ => false,
        }
    }

    /// A unit that writes two keys with one time to live and looks for them.
    pub(super) fn pair(pair: Pair, out: &mut Vec<u8>) -> Unit {
        pair.begin(out);
        Unit::alone(Kind::Pair(pair), Expected::Status("OK"))
    }

    /// Writes the first step of a transaction that takes several.
    pub(super) fn begin(&mut self, out: &mut Vec<u8>) {
        if matches!(self.kind, Kind::CompareAndSet { .. }) {
            write_command(&[b"WATCH", &list_key(self.ops[0].list)], out);
            self.write_op(0, out);
            self.expected.extend([Expected::Status("OK"), Expected::Op(0)]);
        } else {
            let only_reads = self.ops.iter().all(|op| !op.appends);
            let words: &[&[u8]] = if only_reads { &[b"TXN.BEGIN", b"READONLY"] } else { &[b"TXN.BEGIN"] };
            write_command(words, out);
            self.expected.push_back(Expected::Status("OK"));
        }
    }

    /// Its appends, encoded: what is known of it from what was asked.
    pub(super) fn asked(&self) -> Vec<u8> {
        let mut out = Vec::new();
        Txn::encode_head(self.base, self.ops.len(), &mut out);
        for op in &self.ops {
            if op.appends {
                Txn::encode_append(op.list, &mut out);
            } else {
                Txn::encode_read(op.list, &[], &mut out);
            }
        }
        out
    }

    fn value(&self, op: usize) -> [u8; 8] {
        (self.base + op as u64).to_le_bytes()
    }

    /// Writes the command of one operation.
    pub(super) fn write_op(&self, at: usize, out: &mut Vec<u8>) {
        let ListOp { list, appends } = self.ops[at];
        let key = list_key(list);
        if appends {
            write_command(&[b"APPEND", &key, &self.value(at)], out);
        } else if self.base >> 8 & 1 == 0 {
            write_command(&[b"GET", &key], out);
        } else {
            write_command(&[b"GETRANGE", &key, b"0", b"-1"], out);
        }
    }

    /// Writes it in a form, and expects the replies of that.
    pub(super) fn write(&mut self, form: &Form, out: &mut Vec<u8>) {
        let all = 0..self.ops.len();
        match form {
            Form::Plain => {
                self.write_op(0, out);
                self.expected.push_back(Expected::Op(0));
            }
            Form::Multi | Form::Discard => {
                write_command(&[b"MULTI"], out);
                self.expected.push_back(Expected::Status("OK"));
                for at in all {
                    self.write_op(at, out);
                    self.expected.push_back(Expected::Status("QUEUED"));
                }
                if *form == Form::Multi {
                    write_command(&[b"EXEC"], out);
                    self.expected.push_back(Expected::All);
                } else {
                    write_command(&[b"DISCARD"], out);
                    self.expected.push_back(Expected::Status("OK"));
                }
            }
            Form::Eval => self.write_call(&[b"EVAL", SCRIPT.as_bytes()], out),
            Form::EvalSha(sha) => self.write_call(&[b"EVALSHA", sha], out),
            Form::Call => self.write_call(&[b"FCALL", FUNCTION.as_bytes()], out),
            Form::Limited => {
                write_command(
                    &[b"ACL", b"SETUSER", LIMITED, b"on", b"nopass", b"~*", b"+@all", b"-append"],
                    out,
                );
                write_command(&[b"AUTH", LIMITED, b"any"], out);
                self.expected.extend([Expected::Status("OK"), Expected::Status("OK")]);
                self.write_call(&[b"EVAL", SCRIPT.as_bytes()], out);
                write_command(&[b"AUTH", b"default", b"any"], out);
                self.expected.push_back(Expected::Status("OK"));
            }
        }
    }

    fn write_call(&mut self, head: &[&[u8]], out: &mut Vec<u8>) {
        let keys: Vec<Vec<u8>> = self.ops.iter().map(|op| list_key(op.list)).collect();
        let value =
            |(at, op): (usize, &ListOp)| if op.appends { self.value(at).to_vec() } else { Vec::new() };
        let args: Vec<Vec<u8>> = self.ops.iter().enumerate().map(value).collect();
        let count = keys.len().to_string();
        let mut words = head.to_vec();
        words.push(count.as_bytes());
        words.extend(keys.iter().chain(&args).map(Vec::as_slice));
        write_command(&words, out);
        self.expected.push_back(Expected::All);
    }

    /// Takes the next reply.
    pub(super) fn take(&mut self, reply: Reply) -> Result<(), Unexpected> {
        let Some(expected) = self.expected.pop_front() else {
            return Err(Unexpected("a reply that nothing was asked for".to_owned()));
        };
        match (&expected, reply) {
            (Expected::Anything, reply) => self.other = Some(reply),
            (_, Reply::Error(text)) => self.error = self.error.take().or(Some(text)),
            (Expected::Status(status), Reply::Status(text)) if status.as_bytes() == text => {}
            (Expected::Echo(text), Reply::Bulk(back)) if *text == back => {}
            (Expected::Value, reply) => self.other = Some(reply),
            (Expected::Op(at), reply) => self.results[*at] = Some(reply),
            (Expected::All | Expected::Last, Reply::Nil) => self.is_nil = true,
            (Expected::Last, Reply::Array(parts)) if parts.len() == 1 => {
                if let Some(last) = self.results.last_mut() {
                    *last = parts.into_iter().next();
                }
            }
            (Expected::All, Reply::Array(parts)) if parts.len() == self.ops.len() => {
                for (at, part) in parts.into_iter().enumerate() {
                    match part {
                        Reply::Error(text) => self.error = self.error.take().or(Some(text)),
                        part => self.results[at] = Some(part),
                    }
                }
            }
            (expected, reply) => return Err(Unexpected(format!("{reply:?}, which is not {expected:?}"))),
        }
        Ok(())
    }

    /// The lengths that its appends were answered.
    pub(super) fn lengths(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.ops.iter().zip(&self.results).enumerate().filter_map(|(at, (op, result))| match result {
            Some(Reply::Int(length)) if op.appends => {
                Some((op.list, self.base + at as u64, *length as u64 / 8))
            }
            _ => None,
        })
    }

    /// How it has ended, once it has all replies.
    pub(super) fn end(&self) -> Result<End, Unexpected> {
        if let Some(text) = &self.error {
            return Ok(if text.starts_with(b"UNKNOWN") { End::Unknown } else { End::Aborted(text.clone()) });
        }
        if self.is_nil {
            return Ok(End::Aborted(Vec::new()));
        }
        let mut out = Vec::new();
        Txn::encode_head(self.base, self.ops.len(), &mut out);
        for (op, result) in self.ops.iter().zip(&self.results) {
            match (op.appends, result) {
                (true, Some(Reply::Int(length))) if length % 8 == 0 => Txn::encode_append(op.list, &mut out),
                (false, Some(Reply::Bulk(bytes))) => Txn::encode_read(op.list, bytes, &mut out),
                (false, Some(Reply::Nil)) => Txn::encode_read(op.list, &[], &mut out),
                (_, result) => return Err(Unexpected(format!("{result:?}, for {op:?}"))),
            }
        }
        if self.kind == Kind::Refused {
            return Err(Unexpected("an append of a user who may not append".to_owned()));
        }
        match Txn::decode(&out) {
            Some(_) => Ok(End::Committed(out)),
            None => Err(Unexpected(format!("a list that is none: {:?}", self.results))),
        }
    }
}

/// Draws so many operations on the lists of a window.
pub(super) fn draw_ops(random: &mut Random, window: u64, most: u64) -> Vec<ListOp> {
    let count = random.between(1, most);
    (0..count)
        .map(|_| ListOp { list: window * 4 + random.below(4), appends: random.chance(550_000) })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit() -> Unit {
        Unit::new(0x100, vec![ListOp { list: 1, appends: true }, ListOp { list: 2, appends: false }])
    }

    #[test]
    fn a_block_is_what_its_replies_say() {
        let mut block = unit();
        let mut out = Vec::new();
        block.write(&Form::Multi, &mut out);
        assert!(out.ends_with(b"$4\r\nEXEC\r\n"));
        block.take(Reply::Status(b"OK".to_vec())).unwrap();
        for _ in 0..2 {
            block.take(Reply::Status(b"QUEUED".to_vec())).unwrap();
        }
        let read = Reply::Bulk(7u64.to_le_bytes().to_vec());
        block.take(Reply::Array(vec![Reply::Int(16), read])).unwrap();
        assert!(block.expected.is_empty());
        assert_eq!(block.lengths().collect::<Vec<_>>(), [(1, 0x100, 2)]);
        let End::Committed(bytes) = block.end().unwrap() else { panic!("{block:?}") };
        assert_eq!(Txn::decode(&bytes).unwrap().ops.len(), 2);
    }

    #[test]
    fn a_script_that_does_what_its_user_may_not_is_refused() {
        let ok = || Reply::Status(b"OK".to_vec());
        for (script, is_right) in
            [(Reply::Error(b"NOPERM".to_vec()), true), (Reply::Array(vec![Reply::Int(8)]), false)]
        {
            let mut limited = Unit::new(0x100, vec![ListOp { list: 1, appends: true }]);
            limited.kind = Kind::Refused;
            limited.write(&Form::Limited, &mut Vec::new());
            [ok(), ok(), script, ok()].into_iter().for_each(|reply| limited.take(reply).unwrap());
            assert!(limited.expected.is_empty());
            assert_eq!(limited.end().is_ok(), is_right);
        }
    }

    #[test]
    fn what_is_no_reply_to_a_command_is_refused() {
        let mut block = unit();
        block.write(&Form::Eval, &mut Vec::new());
        assert!(block.take(Reply::Array(vec![Reply::Int(8)])).is_err(), "a part is missing");
        assert!(block.take(Reply::Int(1)).is_err(), "nothing is owed");
        let mut plain = Unit::new(0x100, vec![ListOp { list: 1, appends: true }]);
        plain.write(&Form::Plain, &mut Vec::new());
        plain.take(Reply::Bulk(b"x".to_vec())).unwrap();
        assert!(plain.end().is_err(), "an append is answered a number");
        let mut echo = Unit::alone(Kind::Word, Expected::Echo(b"a".to_vec()));
        assert!(echo.take(Reply::Bulk(b"b".to_vec())).is_err());
    }

    #[test]
    fn errors_and_nil_are_no_effect_and_unknown_is_neither() {
        for (reply, end) in [
            (Reply::Nil, End::Aborted(Vec::new())),
            (Reply::Error(b"BUSY".to_vec()), End::Aborted(b"BUSY".to_vec())),
            (Reply::Error(b"UNKNOWN the".to_vec()), End::Unknown),
        ] {
            let mut call = unit();
            call.write(&Form::Call, &mut Vec::new());
            call.take(reply).unwrap();
            assert_eq!(call.end().unwrap(), end);
        }
    }
}
