//! Sessions in front of another family of engines: they know its interactive transactions and its tokens by the gateway's
//! interface alone.

use std::sync::Arc;

use ordain_gateway::{
    Backend, Begin, Desk, Finished, Gateway, Ordered, Progress, Services, Step, TokenForm, Tokens,
    Transaction,
};
use ordain_model::{Args, Call, Db, RequestNo, SessionId, Stamp, Token, View, Writer, system};

use ordain_conformance::reference::Server;

/// A backend whose engines run the commands of an interactive transaction as they come, and whose tokens are vectors.
#[derive(Debug)]
struct Direct;

/// An open transaction of such an engine.
#[derive(Debug)]
struct DirectTransaction;

impl Backend for Direct {
    fn services(&self) -> Services {
        Services::ALL
    }

    fn begin(&self, _how: Begin) -> Box<dyn Transaction> {
        Box::new(DirectTransaction)
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens::OfConnections(self)
    }

    fn run_of(&self, _stamp: Stamp, _index: u32) -> Option<Stamp> {
        None
    }

    fn keeps_order(&self) -> bool {
        false
    }
}

impl TokenForm for Direct {
    fn write_token(&self, token: &Token, w: &mut Writer<'_>) {
        let numbers: Vec<u64> = token.numbers().collect();
        w.array(numbers.len());
        numbers.into_iter().for_each(|number| w.int(number as i64));
    }

    fn read_token(&self, number: Option<u64>) -> Result<Token, &'static str> {
        number.map(|number| Token::of_vector(&[0, number], [])).ok_or("ERR no vector")
    }
}

impl Transaction for DirectTransaction {
    fn call(&mut self, gateway: &mut Gateway, desk: Desk<'_>, step: Step<'_>, out: &mut Vec<u8>) -> Progress {
        let args = Args::parse(step.args).expect("a session encodes what it hands over");
        let view = View::Since(desk.seen.clone());
        let call = Call::new(step.procedure, step.db);
        match gateway.submit_in_order(desk.stream, desk.ticket, call, view, |out| _ = out.append(args)) {
            Ok(_) => Progress::Waits,
            Err(refusal) => {
                Writer(out).error(&refusal.0);
                Progress::Answered
            }
        }
    }

    fn finished(&mut self, _gateway: &mut Gateway, _finished: &Finished<'_>, _out: &mut Vec<u8>) -> bool {
        // What the command has answered is its reply.
        false
    }

    fn commit(
        &mut self,
        gateway: &mut Gateway,
        desk: Desk<'_>,
        (db, session): (Db, Option<(SessionId, RequestNo)>),
        _out: &mut Vec<u8>,
    ) -> Progress {
        let call = Call { procedure: system::COMMIT, db, session };
        let write = |args: &mut ordain_model::ArgsBuilder<'_>| {
            system::commit_args(std::iter::empty(), std::iter::empty(), args);
        };
        let submitted = gateway.submit_in_order(desk.stream, desk.ticket, call, View::Ordered, write);
        submitted.expect("nothing is wrong with an empty commit");
        Progress::Waits
    }

    fn end(&mut self, _gateway: &mut Gateway) {}

    fn is_lost(&self) -> bool {
        false
    }

    fn written(&self, _show: &mut dyn FnMut(Db, &[u8])) {}

    fn bytes(&self) -> usize {
        0
    }
}

fn in_front_of(backend: Arc<dyn Backend>) -> Server {
    let mut server = Server::new(2);
    let registry = server.gateway.registry().clone();
    server.gateway = Gateway::alone(ordain_model::GatewayId(0), registry).with_backend(backend);
    server
}

#[test]
fn an_interactive_transaction_runs_as_its_engines_run_it() {
    let words: [&[&str]; 6] =
        [&["TXN.BEGIN"], &["SET", "k", "v"], &["GET", "k"], &["TXN.COMMIT"], &["GET", "k"], &["PING"]];
    for backend in [Arc::new(Ordered) as Arc<dyn Backend>, Arc::new(Direct)] {
        let mut server = in_front_of(backend);
        let replies: String = words.iter().map(|words| server.ask(0, words)).collect();
        assert_eq!(replies, "+OK\n+OK\n$1\nv\n+OK\n$1\nv\n+PONG\n");
    }
    // What is not committed is seen by others as the engine has it: not at all, or at once.
    for (backend, seen) in [(Arc::new(Ordered) as Arc<dyn Backend>, "$-1\n"), (Arc::new(Direct), "$1\nv\n")] {
        let mut server = in_front_of(backend);
        server.ask(0, &["TXN.BEGIN"]);
        server.ask(0, &["SET", "k", "v"]);
        assert_eq!(server.ask(1, &["GET", "k"]), seen);
        assert_eq!(server.ask(0, &["TXN.ABORT"]), "+OK\n");
    }
}

#[test]
fn a_token_is_handed_from_one_connection_to_another_as_its_engines_write_it() {
    let mut server = in_front_of(Arc::new(Direct));
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH", "7"]), "+OK\n");
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH", "5"]), "+OK\n");
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH"]), "*2\n:0\n:7\n");
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH", "x"]), "-ERR no vector\n");
    // What a transaction has seen is added to it.
    server.ask(0, &["SET", "k", "v"]);
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH"]), "*2\n:1\n:7\n");
    let mut server = in_front_of(Arc::new(Ordered));
    server.ask(0, &["SET", "k", "v"]);
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH"]), ":1\n");
    let refused = "-ERR an epoch is an integer, as CLIENT EPOCH has answered it\n";
    assert_eq!(server.ask(1, &["CLIENT", "EPOCH", &(1u64 << 41).to_string()]), refused);
}

/// A backend whose nodes keep the tokens of their connections.
#[derive(Debug)]
struct OfNodes;

impl Backend for OfNodes {
    fn services(&self) -> Services {
        Services::ALL
    }

    fn begin(&self, how: Begin) -> Box<dyn Transaction> {
        Ordered.begin(how)
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens::OfNodes
    }

    fn run_of(&self, _stamp: Stamp, _index: u32) -> Option<Stamp> {
        None
    }

    fn keeps_order(&self) -> bool {
        false
    }
}

#[test]
fn a_token_that_the_node_keeps_is_asked_of_it_between_transactions() {
    let mut server = in_front_of(Arc::new(OfNodes));
    let longest = "A".repeat(ordain_gateway::TOKEN_MAX);
    // The reference executor takes the question for a read of nothing.
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH"]), "+OK\n");
    assert_eq!(server.ask(0, &["CLIENT", "EPOCH", &longest]), "+OK\n");
    let longer = server.ask(0, &["CLIENT", "EPOCH", &(longest + "A")]);
    assert!(longer.starts_with("-ERR a token of CLIENT EPOCH has 16384 bytes at most"), "{longer}");
    for (begin, end) in [("TXN.BEGIN", "TXN.COMMIT"), ("MULTI", "EXEC")] {
        assert_eq!(server.ask(0, &[begin]), "+OK\n");
        let replies = [server.ask(0, &["CLIENT", "EPOCH"]), server.ask(0, &[end])].concat();
        assert!(replies.contains("-ERR CLIENT EPOCH asks the node with this engine"), "{replies}");
    }
}
