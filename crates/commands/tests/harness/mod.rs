//! Runs commands through the reference executor and writes replies down as text.

// Every test is a crate of its own and uses a part of this.
#![allow(dead_code)]

use std::fmt::Write;
use std::sync::Arc;

use ordain_commands::{Action, check_arity, lookup, register};
use ordain_model::reference::Result as TxnResult;
use ordain_model::{
    ArgsBuilder, Call, Chunk, ChunkNo, Datum, Db, Epoch, GatewayId, Gsn, Millis, PartitionId, PlanError,
    ProcedureId, ReferenceExecutor, Registry, Writer, system,
};

/// A database of one client.
pub struct Client {
    pub executor: ReferenceExecutor,
    pub registry: Arc<Registry>,
    pub now: Millis,
    pub db: Db,
    epoch: Epoch,
}

impl Client {
    pub fn new() -> Client {
        let mut registry = Registry::default();
        system::register(&mut registry);
        register(&mut registry);
        let registry = Arc::new(registry);
        let executor = ReferenceExecutor::new(registry.clone());
        Client { executor, registry, now: Millis(1_700_000_000_000), db: Db(0), epoch: Epoch(0) }
    }

    /// Runs one command and returns its reply as text.
    pub fn run<T: AsRef<[u8]>>(&mut self, words: &[T]) -> String {
        match self.reply(words) {
            Ok(reply) => render(&reply),
            Err(refusal) => format!("-{refusal}"),
        }
    }

    /// Runs one command and returns its reply as it is.
    pub fn reply<T: AsRef<[u8]>>(&mut self, words: &[T]) -> Result<Vec<u8>, PlanError> {
        let words: Vec<&[u8]> = words.iter().map(AsRef::as_ref).collect();
        let command = lookup(words[0]).ok_or(PlanError::fixed("ERR unknown command"))?;
        check_arity(command, words.len())?;
        let Action::Procedure { id, encode } = command.action else {
            assert_eq!(command.name, "select", "the session's commands are not tested here");
            self.db = Db(std::str::from_utf8(words[1]).unwrap().parse().unwrap());
            let mut ok = Vec::new();
            Writer(&mut ok).ok();
            return Ok(ok);
        };
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
        chunk.push(&self.registry, Call::new(id, self.db), |args| encode(&words[1..], args))?;
        self.check_log(&chunk);
        Ok(self.run_chunk(&chunk).reply)
    }

    /// Runs commands as one transaction.
    pub fn multi(&mut self, commands: &[Vec<String>]) -> String {
        let encoded: Vec<(ProcedureId, Vec<u8>)> = commands
            .iter()
            .map(|words| {
                let Some(Action::Procedure { id, encode }) = lookup(words[0].as_bytes()).map(|c| c.action)
                else {
                    panic!("{} is no procedure", words[0])
                };
                let words: Vec<&[u8]> = words[1..].iter().map(|word| word.as_bytes()).collect();
                let mut args = Vec::new();
                encode(&words, &mut ArgsBuilder::new(&mut args));
                (id, args)
            })
            .collect();
        let calls = encoded.iter().map(|(id, args)| (*id, self.db, args.as_slice()));
        let mut chunk = Chunk::new(GatewayId(0), ChunkNo(1));
        let call = Call::new(system::MULTI, self.db);
        chunk.push(&self.registry, call, |args| system::multi_args([].into_iter(), calls, args)).unwrap();
        self.check_log(&chunk);
        render(&self.run_chunk(&chunk).reply)
    }

    /// Runs the one transaction of a chunk.
    pub fn run_chunk(&mut self, chunk: &Chunk) -> TxnResult {
        self.epoch = self.epoch.next();
        let gsn = Gsn::new(self.epoch, PartitionId(0), 0);
        self.executor.run_txn(gsn, self.now, chunk, &chunk.txns()[0])
    }

    /// What the log keeps of a chunk must be the same chunk, without what only reads.
    pub fn check_log(&self, chunk: &Chunk) {
        let txn = &chunk.txns()[0];
        let decoded =
            Chunk::rebuild(&self.registry, GatewayId(0), chunk.logged().to_vec(), Vec::new()).unwrap();
        if txn.read_only {
            assert!(decoded.txns().is_empty());
            return;
        }
        let again = &decoded.txns()[0];
        assert_eq!(chunk.fragments(txn), decoded.fragments(again));
        for (a, b) in chunk.fragments(txn).iter().zip(decoded.fragments(again)) {
            assert_eq!(chunk.plans().inputs_of(a), decoded.plans().inputs_of(b));
        }
    }
}

/// The text of a reply.
pub fn render(reply: &[u8]) -> String {
    let mut text = String::new();
    let rest = render_one(reply, &mut text);
    assert!(rest.is_empty(), "more than one value: {reply:?}");
    text
}

fn render_one<'a>(bytes: &'a [u8], text: &mut String) -> &'a [u8] {
    let (datum, mut rest) = Datum::split(bytes).expect("a reply is a datum");
    if let Datum::Pairs(n) = datum {
        // In RESP3 an array of arrays, which is how sessions are recorded.
        let pairs = (0..n).map(|_| {
            let (mut first, mut second) = (String::new(), String::new());
            rest = render_one(rest, &mut first);
            rest = render_one(rest, &mut second);
            format!("[{first} {second}]")
        });
        let pairs: Vec<String> = pairs.collect();
        write!(text, "[{}]", pairs.join(" ")).unwrap();
        return rest;
    }
    let mut items = |open: &str, n: u32, close: &str, text: &mut String| {
        text.push_str(open);
        for i in 0..n {
            if i > 0 {
                text.push(' ');
            }
            rest = render_one(rest, text);
        }
        text.push_str(close);
    };
    match datum {
        Datum::Nil => text.push('_'),
        Datum::NilArray => text.push_str("_[]"),
        Datum::Int(i) => write!(text, ":{i}").unwrap(),
        Datum::Bulk(bytes) => write!(text, "\"{}\"", bytes.escape_ascii()).unwrap(),
        Datum::Status(status) => write!(text, "+{}", status.escape_ascii()).unwrap(),
        Datum::Error(error) => write!(text, "-{}", String::from_utf8_lossy(error)).unwrap(),
        Datum::Array(n) => items("[", n, "]", text),
        Datum::Map(n) => items("{", 2 * n, "}", text),
        Datum::Set(n) => items("~[", n, "]", text),
        Datum::Bool(b) => write!(text, "#{}", if b { 't' } else { 'f' }).unwrap(),
        Datum::Double(d) => write!(text, ",{d}").unwrap(),
        Datum::Verbatim(_, bytes) => write!(text, "=\"{}\"", bytes.escape_ascii()).unwrap(),
        Datum::BigNumber(digits) => write!(text, "({}", digits.escape_ascii()).unwrap(),
        Datum::Pairs(_) => panic!("pairs are the reply of no command here"),
    }
    rest
}
