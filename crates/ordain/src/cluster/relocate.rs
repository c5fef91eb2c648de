//! `ordain cluster move`: hash slots go to another partition while the cluster serves.
//!
//! One slot at a time is copied in parts (`DEBUG COPY-SLOT`) while it is served; then it moves (`DEBUG MOVE-SLOTS`), for which only
//! what has changed since is sent. Several at a time move without copies: while their records are on their way nothing else is
//! executed. What has moved stays there, whatever becomes of the rest; to ask for what has been done
//! does nothing. So a step whose answer does not come is asked for again, of another node if need be.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use ordain_model::key::SLOTS;
use ordain_node::admin_client::Login;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use super::access::{ClusterArgs, Way};
use super::relocation::{Relocation, Step};
use super::status::{Member, anyone, ask};

/// How long a node has to take a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How long it has to answer, before another one is asked.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long a step is asked for again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long until a step is asked for again.
const PAUSE: Duration = Duration::from_millis(200);

/// What to do about a login that is not let in.
const LOG_IN: &str = ": name a user with the right to 'debug' with --user, and its password with --password-file or \
                      ORDAIN_PASSWORD, or the cluster's file with --config";

/// The flags of `ordain cluster move`.
#[derive(Debug, Args)]
pub struct MoveArgs {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// The slots, of the 1,024: one, or from one to another, such as 0-99
    #[arg(long, value_name = "SLOTS", value_parser = parse_slots)]
    slots: RangeInclusive<usize>,
    /// The partition that they go to
    #[arg(long, value_name = "PARTITION")]
    to: u16,
    /// How many go at a time: several are not copied before
    #[arg(long, value_name = "SLOTS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    step: u16,
}

fn parse_slots(text: &str) -> Result<RangeInclusive<usize>, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = || Some((first.trim().parse::<usize>().ok()?, last.trim().parse::<usize>().ok()?));
    parse()
        .filter(|(first, last)| first <= last && *last < SLOTS)
        .map(|(first, last)| first..=last)
        .ok_or_else(|| format!("'{text}' is not a slot of 0 to {}, nor a range such as 0-99", SLOTS - 1))
}

/// Moves the slots.
///
/// # Errors
/// There is no such partition, or no node does what it is asked.
pub fn run(args: &MoveArgs) -> anyhow::Result<()> {
    let way = args.cluster.way()?;
    let members = anyone(&way)?.members;
    let partitions = members.iter().map(|member| member.partition + 1).max().unwrap_or(1);
    anyhow::ensure!(
        args.to < partitions,
        "there is no partition {}: this cluster has {partitions}, from 0 on",
        args.to
    );
    let mut asked = Asked { members: &members, next: 0, open: None, way: &way };
    let mut relocation = Relocation::new(args.slots.clone(), usize::from(args.step));
    while let Some(step) = relocation.next() {
        let (next, is_first) = match step {
            Step::Copy { slot, from } => {
                let (answer, is_first) =
                    asked.demand(&format!("DEBUG COPY-SLOT {slot} {} {}", args.to, from.0))?;
                let next = answer.strip_prefix(':').and_then(|next| next.parse::<i64>().ok());
                (next.with_context(|| format!("DEBUG COPY-SLOT answered {answer}"))?, is_first)
            }
            Step::Move { first, last } => {
                asked.demand(&format!("DEBUG MOVE-SLOTS {first} {last} {}", args.to))?;
                let _ = writeln!(std::io::stdout(), "slots {first} to {last}: at partition {}", args.to);
                (0, true)
            }
        };
        relocation.done(next, is_first);
    }
    Ok(())
}

/// A connection to a port for clients, in TLS or not.
trait Channel: Read + Write {}

impl<T: Read + Write> Channel for T {}

type Open = BufReader<Box<dyn Channel>>;

/// The nodes, one of which is asked at a time.
struct Asked<'a> {
    members: &'a [Member],
    next: usize,
    open: Option<Open>,
    way: &'a Way,
}

impl Asked<'_> {
    /// Asks for something until it is done: the answer, and whether it came when it was first asked for.
    fn demand(&mut self, command: &str) -> anyhow::Result<(String, bool)> {
        let begun = Instant::now();
        let mut is_first = true;
        loop {
            let reason = match self.ask(command) {
                Ok(answer) if answer.starts_with(['+', ':']) => return Ok((answer, is_first)),
                // It may be done later, or may have been done.
                Ok(answer)
                    if ["-BUSY", "-UNKNOWN", "-MISCONF"].iter().any(|error| answer.starts_with(error)) =>
                {
                    answer
                }
                Ok(answer) => {
                    let about_login = ["-NOAUTH", "-WRONGPASS", "-NOPERM"];
                    let remedy = match about_login.iter().any(|error| answer.starts_with(error)) {
                        true => LOG_IN,
                        false => "",
                    };
                    anyhow::bail!("{command}: {}{remedy}", answer.trim_start_matches('-'))
                }
                Err(error) => {
                    self.open = None;
                    self.next += 1;
                    format!("{error:#}")
                }
            };
            anyhow::ensure!(
                begun.elapsed() < PATIENCE,
                "{command}: not done after {} s: {reason}: look at `ordain cluster status`; what was moved stays where it \
                 is, and the rest may be asked for again",
                PATIENCE.as_secs()
            );
            is_first = false;
            std::thread::sleep(PAUSE);
        }
    }

    /// Asks once: the line of the answer, or of the refusal of the login.
    fn ask(&mut self, command: &str) -> anyhow::Result<String> {
        if self.open.is_none() {
            let member = &self.members[self.next % self.members.len()];
            let mut open = connect(self.way, member)?;
            if let Some(login) = self.way.login() {
                let answer = exchange(&mut open, &auth(login))?;
                if !answer.starts_with('+') {
                    return Ok(answer);
                }
            }
            self.open = Some(open);
        }
        let stream = self.open.as_mut().context("a connection was opened")?;
        exchange(stream, format!("{command}\r\n").as_bytes())
    }
}

/// The command that logs in.
fn auth(Login { user, password }: &Login) -> Vec<u8> {
    let (users, passwords) = (user.len(), password.len());
    format!("*3\r\n$4\r\nAUTH\r\n${users}\r\n{user}\r\n${passwords}\r\n{password}\r\n").into_bytes()
}

/// Connects to a node's port for clients: the one in TLS, if the node has one and this side can.
fn connect(way: &Way, member: &Member) -> anyhow::Result<Open> {
    let Some(config) = &way.tls else {
        return Ok(BufReader::new(Box::new(dial(&member.resp)?)));
    };
    let status = ask(way, &member.target()).map_err(|unasked| anyhow::anyhow!("{}", unasked.reason))?;
    let Some(tls) = status.tls else {
        anyhow::ensure!(
            !way.must_be_tls,
            "{} has no port for clients in TLS, and the login is not sent in the clear: start it with --tls-port",
            member.resp
        );
        return Ok(BufReader::new(Box::new(dial(&member.resp)?)));
    };
    // The node knows its port; at which host it is reached, the cluster's file.
    let (host, _) = member.resp.rsplit_once(':').context("it has no address for clients")?;
    let (_, port) = tls.rsplit_once(':').context("it has no port for clients in TLS")?;
    let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(name).with_context(|| format!("{host} is no name of a host"))?;
    let mut socket = dial(&format!("{host}:{port}"))?;
    let mut session = ClientConnection::new(config.clone(), name)?;
    session.complete_io(&mut socket).with_context(|| {
        format!("TLS with {host}:{port} failed: check its certificate and --tls-ca-cert-file")
    })?;
    Ok(BufReader::new(Box::new(StreamOwned::new(session, socket))))
}

fn dial(address: &str) -> anyhow::Result<TcpStream> {
    let resolved = address.to_socket_addrs()?.next().with_context(|| format!("{address} is no address"))?;
    let stream = TcpStream::connect_timeout(&resolved, CONNECT_WITHIN).with_context(|| {
        format!("cannot connect to {address}: if its port is in TLS alone, name the authority with --tls-ca-cert-file")
    })?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.set_write_timeout(Some(ANSWER_WITHIN))?;
    Ok(stream)
}

/// Sends a command and reads the line that it is answered with.
fn exchange(stream: &mut Open, command: &[u8]) -> anyhow::Result<String> {
    stream.get_mut().write_all(command)?;
    stream.get_mut().flush()?;
    let mut answer = String::new();
    stream.read_line(&mut answer)?;
    anyhow::ensure!(answer.ends_with('\n'), "the connection was closed");
    Ok(answer.trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_one_or_from_one_to_another() {
        assert_eq!(parse_slots("7"), Ok(7..=7));
        assert_eq!(parse_slots("0-1023"), Ok(0..=1023));
        for wrong in ["", "-", "5-4", "1024", "0-1024", "a-b", "1-2-3", "-1"] {
            assert!(parse_slots(wrong).is_err(), "{wrong}");
        }
    }
}
