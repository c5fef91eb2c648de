//! The suite on the reference: what was recorded from Redis, what is written down of sessions, and that the suite finds a
//! subject that answers wrongly.

use ordain_conformance::reference::Server;
use ordain_conformance::transcript::Transcript;
use ordain_conformance::{Subject, Traits, Weather, drawn};
use ordain_engines::registry::Abilities;

#[test]
fn every_transcript_comes_true() {
    let mut failures = Vec::new();
    for folder in ["commands", "sessions", "interactive", "expiry", "keyspace", "protocols"] {
        for transcript in Transcript::folder(folder) {
            if let Err(failure) = transcript.run(&mut Server::new(0)) {
                failures.push(format!("{folder}/{failure}"));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn the_reference_answers_as_itself() {
    drawn::hold(0..20, 40, &|| Box::new(Server::new(0))).unwrap();
}

/// A server that answers MGET with its second value in place of its first, and says that it has no interactive transactions.
#[derive(Debug)]
struct Mistaken(Server, bool);

impl Subject for Mistaken {
    fn traits(&self) -> Traits {
        let traits = self.0.traits();
        Traits { can: Abilities { is_interactive: false, ..traits.can }, ..traits }
    }

    fn open(&mut self, seat: usize) -> usize {
        self.0.open(seat)
    }

    fn send(&mut self, connection: usize, bytes: &[u8]) {
        self.1 = bytes.starts_with(b"*5\r\n$4\r\nMGET");
        Subject::send(&mut self.0, connection, bytes);
    }

    fn settle(&mut self) -> Result<(), String> {
        Subject::settle(&mut self.0)
    }

    fn rest(&mut self) -> Result<(), String> {
        self.0.rest()
    }

    fn take(&mut self, connection: usize) -> Vec<u8> {
        let received = Subject::take(&mut self.0, connection);
        match received.strip_prefix(b"*4\r\n$1\r\na\r\n") {
            Some(rest) if self.1 => [b"*4\r\n$1\r\nb\r\n", rest].concat(),
            _ => received,
        }
    }

    fn is_closed(&self, connection: usize) -> bool {
        self.0.is_closed(connection)
    }

    fn close(&mut self, connection: usize) {
        self.0.close(connection);
    }

    fn advance(&mut self, ms: u64) -> Result<(), String> {
        self.0.advance(ms)
    }

    fn sweep(&mut self) -> Result<(), String> {
        self.0.sweep()
    }

    fn move_slots(&mut self) -> Result<(), String> {
        self.0.move_slots()
    }

    fn set_used(&mut self, bytes: u64) -> Result<(), String> {
        self.0.set_used(bytes)
    }

    fn set_weather(&mut self, weather: Weather) {
        self.0.set_weather(weather);
    }
}

/// A failing program is cut down to a transcript that can be kept, which the reference then fulfils.
#[test]
fn a_subject_that_answers_wrongly_is_found_and_the_program_cut_down() {
    let failure = drawn::hold(0..2000, 40, &|| Box::new(Mistaken(Server::new(0), false))).unwrap_err();
    let (head, text) = failure.split_once("\n\n").unwrap();
    assert!(head.contains("received") && head.contains("expected"), "{head}");
    let commands: Vec<&str> = text.lines().filter(|line| line.get(1..2) == Some(">")).collect();
    assert!(commands.len() <= 3, "{text}");
    assert!(commands.last().unwrap().contains("MGET"), "{text}");
    let transcript = Transcript::new("found", text);
    transcript.run(&mut Server::new(0)).unwrap();
    assert!(transcript.run(&mut Mistaken(Server::new(0), false)).is_err());
}

/// An engine without services: its sessions refuse them, and do everything else.
#[test]
fn what_an_engine_lacks_is_refused_and_everything_else_goes_on() {
    let mut failures = Vec::new();
    for folder in ["commands", "sessions", "interactive", "expiry", "keyspace", "protocols"] {
        for transcript in Transcript::folder(folder) {
            if let Err(failure) = transcript.run(&mut Server::without_services()) {
                failures.push(format!("{folder}/{failure}"));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

/// What a subject says that it cannot do it must refuse.
#[test]
fn an_ability_that_is_denied_is_to_be_refused() {
    let of_interactive = Transcript::folder("interactive");
    let run = |transcript: &Transcript| transcript.run(&mut Mistaken(Server::new(0), false));
    let failures: Vec<String> =
        of_interactive.iter().filter_map(|t| Some(run(t).err()?.to_string())).collect();
    assert_eq!(failures.len(), 1, "{failures:?}");
    assert!(failures[0].starts_with("refused.resp"), "{failures:?}");
}
