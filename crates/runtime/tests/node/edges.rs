//! Edges: sockets served, load made, and what a stop leaves them time for.

use crate::ends::reason;
use crate::*;

/// The role that byte servers ask.
pub(crate) const ORACLE: u16 = 1;

/// A server of one byte a request: it asks the oracle and writes the answer's number back.
pub(crate) struct ByteServer {
    address: SocketAddr,
    bound: Sender<SocketAddr>,
    listener: Option<TcpListener>,
    registry: Option<Registry>,
    tokens: Option<Tokens>,
    clients: Vec<Option<TcpStream>>,
    /// Answers to write at the end of the turn: client and byte.
    answers: Vec<(usize, u8)>,
    asked: usize,
    stopping: bool,
}

impl ByteServer {
    pub(crate) fn new(address: SocketAddr) -> (ByteServer, Receiver<SocketAddr>) {
        let (bound, at) = channel();
        let server = ByteServer {
            address,
            bound,
            listener: None,
            registry: None,
            tokens: None,
            clients: Vec::new(),
            answers: Vec::new(),
            asked: 0,
            stopping: false,
        };
        (server, at)
    }

    fn accept(&mut self) {
        let (Some(listener), Some(registry), Some(tokens)) = (&self.listener, &self.registry, self.tokens)
        else {
            return;
        };
        while let Ok((mut client, _)) = listener.accept() {
            let token = tokens.token(1 + self.clients.len());
            registry.register(&mut client, token, Interest::READABLE).unwrap();
            self.clients.push(Some(client));
        }
    }

    fn read(&mut self, client: usize, out: &mut Outbox<Msg>) {
        let mut buffer = [0; 16];
        loop {
            let Some(stream) = &mut self.clients[client] else { return };
            match stream.read(&mut buffer) {
                Ok(0) => self.clients[client] = None,
                Ok(count) if !self.stopping => {
                    self.asked += count;
                    buffer[..count].iter().for_each(|_| out.send(at(ORACLE), Msg::Ping(client as u64)));
                }
                Ok(_) => {}
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                    return;
                }
            }
        }
    }
}

impl Role for ByteServer {
    type Message = Msg;

    fn handle(&mut self, _now: Now, event: Event<Msg>, _out: &mut Outbox<Msg>) {
        if let Event::Message { message: Msg::Pong(client), .. } = event {
            self.answers.push((client as usize, b'!'));
        }
    }

    fn name(&self) -> &'static str {
        "server"
    }
}

impl Edge for ByteServer {
    fn register(&mut self, registry: Registry, tokens: Tokens) -> io::Result<()> {
        let mut listener = TcpListener::bind(self.address)?;
        registry.register(&mut listener, tokens.token(0), Interest::READABLE)?;
        self.bound.send(listener.local_addr()?).unwrap();
        self.listener = Some(listener);
        self.registry = Some(registry);
        self.tokens = Some(tokens);
        Ok(())
    }

    fn ready(&mut self, event: &mio::event::Event, _now: Now, out: &mut Outbox<Msg>) {
        match self.tokens.unwrap().number(event.token()) {
            0 => self.accept(),
            client => self.read(client - 1, out),
        }
    }

    fn flush(&mut self, _now: Now, _out: &mut Outbox<Msg>) {
        for (client, answer) in self.answers.drain(..) {
            self.asked -= 1;
            if let Some(stream) = &mut self.clients[client] {
                stream.write_all(&[answer]).unwrap();
            }
        }
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<Msg>) {
        self.stopping = true;
        self.listener = None;
    }

    fn drained(&self) -> bool {
        self.asked == 0
    }
}

#[test]
fn an_edge_serves_clients_and_a_stop_lets_it_finish_what_was_begun() {
    let (heard, hears) = channel();
    let mut asked = Vec::new();
    // Answers late, so that the stop comes in between; the first of a client at once.
    let oracle = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Message { from, message: Msg::Ping(client) } => {
            asked.push((from, client));
            out.set_timer(TimerId(1), Micros::from_millis(if asked.len() == 1 { 0 } else { 40 }));
            heard.send(()).unwrap();
        }
        Event::Timer(_) => asked.iter().for_each(|(from, client)| out.send(*from, Msg::Pong(*client))),
        _ => {}
    });
    let (server, bound) = ByteServer::new("127.0.0.1:0".parse().unwrap());
    let loops = vec![LoopSpec::new("front").edge(2, server), LoopSpec::new("back").role(ORACLE, oracle)];
    let running = Runtime::start(options(), None, loops).unwrap();
    let address = bound.recv().unwrap();
    let mut client = std::net::TcpStream::connect(address).unwrap();
    client.write_all(b"?").unwrap();
    hears.recv().unwrap();
    running.stop().unwrap();
    // The answer to what was asked before the stop, then the end.
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"!");
    assert!(std::net::TcpStream::connect(address).is_err());
}

/// Makes its own load: a ping a turn, as long as it wants.
pub(crate) struct Load {
    left: u64,
    answered: u64,
    flushed_after: u64,
    done: Sender<u64>,
    forever: bool,
}

impl Role for Load {
    type Message = Msg;

    fn handle(&mut self, _now: Now, event: Event<Msg>, _out: &mut Outbox<Msg>) {
        if let Event::Message { message: Msg::Pong(_), .. } = event {
            self.answered += 1;
        }
    }

    fn name(&self) -> &'static str {
        "load"
    }
}

impl Edge for Load {
    fn register(&mut self, _registry: Registry, _tokens: Tokens) -> io::Result<()> {
        Ok(())
    }

    fn ready(&mut self, _event: &mio::event::Event, _now: Now, _out: &mut Outbox<Msg>) {}

    fn turn(&mut self, _now: Now, out: &mut Outbox<Msg>) -> Turn {
        if self.left == 0 {
            return Turn::Idle;
        }
        self.left -= 1;
        out.send(at(ORACLE), Msg::Ping(self.left));
        Turn::Again
    }

    fn flush(&mut self, _now: Now, _out: &mut Outbox<Msg>) {
        if self.answered > self.flushed_after {
            self.flushed_after = self.answered;
            self.done.send(self.answered).unwrap();
        }
    }

    fn stop(&mut self, _now: Now, _out: &mut Outbox<Msg>) {}

    fn drained(&self) -> bool {
        !self.forever
    }
}

/// A client of a node that has halted must not get an answer that was made up before the node knew.
#[test]
fn an_edge_sends_nothing_once_the_node_has_halted() {
    let mut from_door = None;
    let oracle = Acts(move |_, event, out: &mut Outbox<Msg>| match event {
        Event::Message { from, message: Msg::Ping(client) } => {
            out.send(from, Msg::Pong(client));
            // The answer is under way when this fires, in the same turn.
            from_door = Some(from);
            out.send(at(ORACLE), Msg::Pong(0));
        }
        Event::Message { .. } => out.halt(format!("{from_door:?} asked too much")),
        _ => {}
    });
    let (server, bound) = ByteServer::new("127.0.0.1:0".parse().unwrap());
    let running =
        Runtime::start(options(), None, vec![LoopSpec::new("a").role(ORACLE, oracle).edge(2, server)])
            .unwrap();
    let mut client = std::net::TcpStream::connect(bound.recv().unwrap()).unwrap();
    client.write_all(b"?").unwrap();
    assert!(reason(running.wait()).contains("asked too much"));
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).unwrap();
    assert_eq!(answer, b"");
}

#[test]
fn an_edge_that_wants_another_turn_gets_it_without_an_event() {
    let (done, answered) = channel();
    let load = Load { left: 1_000, answered: 0, flushed_after: 0, done, forever: false };
    let loops = vec![LoopSpec::new("a").edge(2, load).role(ORACLE, echo())];
    let running = Runtime::start(options(), None, loops).unwrap();
    assert_eq!(answered.iter().find(|n| *n == 1_000), Some(1_000));
    running.stop().unwrap();
}

#[test]
fn an_edge_that_never_finishes_does_not_hold_up_a_stop_for_ever() {
    let (done, _answered) = channel();
    let load = Load { left: 0, answered: 0, flushed_after: 0, done, forever: true };
    let loops = vec![LoopSpec::new("a").edge(2, load), LoopSpec::new("b").role(ORACLE, echo())];
    let options = Options { drain: Duration::from_millis(30), ..options() };
    Runtime::start(options, None, loops).unwrap().stop().unwrap();
}
