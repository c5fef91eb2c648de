//! A connection that is waited on: for the talk before a run and after it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};
use ordain_model::Datum;
use ordain_resp::client::{Commands, Read, ReplyParser};

use super::target::Target;

/// Longest wait for an answer: loading is over then, or has not begun.
const PATIENCE: Duration = Duration::from_secs(60);
const CONNECT: Duration = Duration::from_secs(10);
/// Commands that are sent before their replies are read.
const WINDOW: usize = 512;

/// A connection with a server that has let us in.
#[derive(Debug)]
pub struct Link {
    stream: TcpStream,
    input: Vec<u8>,
    parser: ReplyParser,
}

/// The protocol of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Every server speaks it.
    Resp2,
    /// For replies whose kinds of values must not be lost.
    Resp3,
}

impl Link {
    /// Connects, logs in and selects the database.
    ///
    /// # Errors
    /// No server is there, or it refuses the connection.
    pub fn open(target: &Target, protocol: Protocol) -> anyhow::Result<Link> {
        let address = target.resolve()?;
        let stream = TcpStream::connect_timeout(&address, CONNECT)
            .with_context(|| format!("cannot connect to {target}: is a server running there?"))?;
        stream.set_nodelay(true).context("setting TCP_NODELAY")?;
        stream.set_read_timeout(Some(PATIENCE)).context("setting a timeout")?;
        stream.set_write_timeout(Some(PATIENCE)).context("setting a timeout")?;
        let mut link = Link { stream, input: Vec::new(), parser: ReplyParser::default() };
        if let Some(password) = &target.password {
            let words = ["AUTH"].into_iter().chain(target.user.as_deref()).chain([&**password]);
            link.expect_ok(&words.collect::<Vec<_>>())
                .with_context(|| format!("{target} refuses the password"))?;
        }
        if protocol == Protocol::Resp3 {
            let hello = link.ask(&["HELLO", "3"])?;
            no_error(&hello).with_context(|| format!("{target} does not speak RESP3"))?;
        }
        if target.db != 0 {
            let db = target.db.to_string();
            link.expect_ok(&["SELECT", &db]).with_context(|| format!("{target} has no such database"))?;
        }
        Ok(link)
    }

    /// The address of the other end.
    pub fn peer(&self) -> anyhow::Result<SocketAddr> {
        self.stream.peer_addr().context("the connection is gone")
    }

    /// The socket, for a caller that will not wait. All that was asked must have been answered.
    pub fn into_stream(self) -> anyhow::Result<TcpStream> {
        self.stream.set_nonblocking(true).context("making a socket non-blocking")?;
        Ok(self.stream)
    }

    /// Sends one command and waits for its reply: an encoded [`Datum`], which may be an error.
    pub fn ask<T: AsRef<[u8]>>(&mut self, words: &[T]) -> anyhow::Result<Vec<u8>> {
        let mut commands = Commands::default();
        commands.command(words);
        self.stream.write_all(&commands.bytes).context("the server has gone")?;
        let mut reply = Vec::new();
        self.receive(&mut reply)?;
        Ok(reply)
    }

    /// Sends one command that must answer with a count.
    pub fn ask_count(&mut self, command: &str) -> anyhow::Result<u64> {
        let reply = self.ask(&[command])?;
        no_error(&reply).with_context(|| format!("{command} was refused"))?;
        let count = Datum::first(&reply).as_int().and_then(|count| u64::try_from(count).ok());
        count.with_context(|| format!("{command} answered no number"))
    }

    /// Sends one command that must answer OK.
    pub fn expect_ok<T: AsRef<[u8]>>(&mut self, words: &[T]) -> anyhow::Result<()> {
        let reply = self.ask(words)?;
        match Datum::first(&reply) {
            Datum::Status(b"OK") => Ok(()),
            Datum::Error(text) => bail!("{}", String::from_utf8_lossy(text)),
            other => bail!("the server answered {other:?}"),
        }
    }

    /// Sends a command for each item, many at once, and hands each reply to `take` with its item.
    ///
    /// # Errors
    /// The connection broke, a reply is an error, or `take` refuses it.
    pub fn ask_all<I>(
        &mut self,
        items: impl IntoIterator<Item = I>,
        write: impl Fn(&I, &mut Commands),
        mut take: impl FnMut(I, &[u8]) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut items = items.into_iter().peekable();
        let (mut commands, mut asked, mut reply) = (Commands::default(), Vec::new(), Vec::new());
        while items.peek().is_some() {
            commands.clear();
            for item in items.by_ref().take(WINDOW) {
                write(&item, &mut commands);
                asked.push(item);
            }
            self.stream.write_all(&commands.bytes).context("the server has gone")?;
            for item in asked.drain(..) {
                reply.clear();
                self.receive(&mut reply)?;
                no_error(&reply)?;
                take(item, &reply)?;
            }
        }
        Ok(())
    }

    /// Waits for one reply.
    fn receive(&mut self, reply: &mut Vec<u8>) -> anyhow::Result<()> {
        let mut piece = [0; 64 << 10];
        loop {
            match self.parser.read_datum(&self.input, reply)? {
                Read::Whole(bytes) => {
                    self.input.drain(..bytes);
                    return Ok(());
                }
                Read::Part(bytes) => drop(self.input.drain(..bytes)),
            }
            match self.stream.read(&mut piece) {
                Ok(0) => bail!("the server has closed the connection"),
                Ok(bytes) => self.input.extend_from_slice(&piece[..bytes]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    bail!("the server has not answered for {} s", PATIENCE.as_secs())
                }
                Err(error) => return Err(error).context("the server has gone"),
            }
        }
    }
}

/// Refuses an error.
pub fn no_error(reply: &[u8]) -> anyhow::Result<()> {
    match Datum::first(reply) {
        Datum::Error(text) => bail!("{}", String::from_utf8_lossy(text)),
        _ => Ok(()),
    }
}
