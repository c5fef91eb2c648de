//! Clients that send one after the other, each of which waits as long as the engine's promise about reads asks of it.

use ordain_resp::client::command;

use crate::reply;
use crate::subject::{Sight, Subject};

/// The number of connections of a conversation: `a` to `d`.
pub const CONNECTIONS: usize = 4;

/// Some connections to a subject, and what has come over them.
#[derive(Debug)]
pub struct Conversation<'a> {
    /// The subject.
    pub subject: &'a mut dyn Subject,
    /// The subject's number of each connection.
    connections: Vec<usize>,
    received: Vec<Vec<u8>>,
    /// The connection that has sent last, and whether all is settled since.
    last: Option<usize>,
    is_settled: bool,
    speaks_resp3: bool,
}

impl<'a> Conversation<'a> {
    /// Opens the connections.
    pub fn new(subject: &'a mut dyn Subject) -> Conversation<'a> {
        let connections = (0..CONNECTIONS).map(|seat| subject.open(seat)).collect();
        let received = vec![Vec::new(); CONNECTIONS];
        Conversation { subject, connections, received, last: None, is_settled: true, speaks_resp3: false }
    }

    /// Sends bytes. Where an engine lets a read miss what others, or even its own connection, were answered just before, some
    /// time passes first.
    ///
    /// # Errors
    /// As [`Subject::rest`].
    pub fn send(&mut self, number: usize, bytes: &[u8]) -> Result<(), String> {
        let has_changed = self.last.is_some_and(|last| last != number);
        let may_miss = match self.subject.traits().sight() {
            Sight::All => false,
            Sight::Own => has_changed,
            Sight::Late => self.last.is_some(),
        };
        if may_miss && self.is_settled {
            self.subject.rest()?;
        }
        (self.last, self.is_settled) = (Some(number), false);
        self.subject.send(self.connections[number], bytes);
        Ok(())
    }

    /// Sends a command.
    ///
    /// # Errors
    /// As [`Subject::rest`].
    pub fn command<W: AsRef<[u8]>>(&mut self, number: usize, words: &[W]) -> Result<(), String> {
        self.send(number, &command(words))
    }

    /// Lets everything be answered, and takes the answers.
    ///
    /// # Errors
    /// As [`Subject::settle`].
    pub fn settle(&mut self) -> Result<(), String> {
        self.subject.settle()?;
        self.is_settled = true;
        for (received, connection) in self.received.iter_mut().zip(&self.connections) {
            received.extend(self.subject.take(*connection));
        }
        Ok(())
    }

    /// Sends a command and gives its reply on one line, which is the only one that comes.
    ///
    /// # Errors
    /// There is none, or another one; or as [`Subject::settle`].
    pub fn ask<W: AsRef<[u8]>>(&mut self, number: usize, words: &[W]) -> Result<String, String> {
        self.command(number, words)?;
        self.settle()?;
        let received = std::mem::take(&mut self.received[number]);
        let (reply, len) = reply::first(&received)?.ok_or("there is no reply")?;
        if len < received.len() {
            return Err(format!("after the reply came {:?}", reply::lines(&received[len..])));
        }
        Ok(reply.to_string())
    }

    /// As [`ask`](Conversation::ask), of words without spaces.
    ///
    /// # Errors
    /// As there.
    pub fn run(&mut self, number: usize, line: &str) -> Result<String, String> {
        self.ask(number, &line.split(' ').collect::<Vec<_>>())
    }

    /// Has all connections speak RESP3.
    ///
    /// # Errors
    /// As [`ask`](Conversation::ask).
    pub fn speak_resp3(&mut self) -> Result<(), String> {
        self.speaks_resp3 = true;
        (0..CONNECTIONS).try_for_each(|number| self.ask(number, &["HELLO", "3"]).map(drop))
    }

    /// Breaks a connection off and opens another in its place.
    ///
    /// # Errors
    /// As [`ask`](Conversation::ask).
    pub fn hang_up(&mut self, number: usize) -> Result<(), String> {
        self.subject.close(self.connections[number]);
        self.settle()?;
        self.received[number].clear();
        self.connections[number] = self.subject.open(number);
        if self.speaks_resp3 {
            self.ask(number, &["HELLO", "3"])?;
        }
        Ok(())
    }

    /// What a connection has received, for the caller to take from.
    pub fn received(&mut self, number: usize) -> &mut Vec<u8> {
        &mut self.received[number]
    }

    /// What each connection has received.
    pub fn all_received(&self) -> &[Vec<u8>] {
        &self.received
    }

    /// Takes what all connections have received.
    pub fn take_all(&mut self) -> Vec<Vec<u8>> {
        self.received.iter_mut().map(std::mem::take).collect()
    }

    /// True once the server has closed a connection.
    pub fn is_closed(&self, number: usize) -> bool {
        self.subject.is_closed(self.connections[number])
    }
}
