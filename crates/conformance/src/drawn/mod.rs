//! Drawn programs: what a subject answers is compared byte by byte with what the reference answers, and the state at the end
//! by its digest.
//!
//! A program that is answered differently is cut down as far as it stays so, and printed as a transcript with the
//! reference's replies, to be kept in a file.

mod forms;
mod shrink;

use std::fmt;

pub use forms::draw;

use ordain_model::Layout;

use crate::conversation::{CONNECTIONS, Conversation};
use crate::reference::Server;
use crate::reply::{self, quoted};
use crate::subject::{Subject, Traits};

/// The words of a command.
pub type Command = Vec<Vec<u8>>;

/// A step of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A connection sends commands at once and waits for all their replies.
    Send {
        /// The connection.
        connection: usize,
        /// The commands.
        commands: Vec<Command>,
    },
    /// So many milliseconds pass.
    Wait(u64),
    /// The records are removed whose time has come.
    Sweep,
    /// Slots move to other shards and partitions.
    Move,
    /// A client breaks its connection off, and opens another one.
    HangUp(usize),
}

/// What clients do, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// The connections speak RESP3.
    pub speaks_resp3: bool,
    /// The steps.
    pub steps: Vec<Step>,
}

/// A difference between a subject and the reference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The number of the step.
    pub step: usize,
    /// What differs.
    pub text: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in step {}: {}", self.step, self.text)
    }
}

impl Program {
    /// Runs the program against a subject and the reference, both fresh.
    ///
    /// # Errors
    /// The first difference, or what breaks in the subject.
    pub fn compare(&self, subject: &mut dyn Subject) -> Result<(), Difference> {
        let Traits { is_whole, can, .. } = subject.traits();
        let mut reference = Server::placed(0, &subject.layout());
        let (mut real, mut model) = (Conversation::new(subject), Conversation::new(&mut reference));
        let at = |step: usize| move |text: String| Difference { step, text };
        if self.speaks_resp3 {
            real.speak_resp3().map_err(at(0))?;
            model.speak_resp3().map_err(at(0))?;
        }
        for (number, step) in self.steps.iter().enumerate() {
            step.run(&mut real).map_err(at(number))?;
            step.run(&mut model).map_err(at(number))?;
            same(&real.take_all(), &model.take_all()).map_err(at(number))?;
        }
        let end = at(self.steps.len());
        real.subject.sweep().map_err(end)?;
        model.subject.sweep().map_err(end)?;
        same_in_the_end(&mut real, &mut model, &end_questions(is_whole, can.has_digests)).map_err(end)?;
        Ok(())
    }

    /// The program as a transcript, with the reference's replies for records that are placed as in a layout.
    pub fn transcript(&self, layout: &Layout) -> String {
        let mut reference = Server::placed(0, layout);
        let mut talk = Conversation::new(&mut reference);
        let mut text = String::new();
        if self.speaks_resp3 && talk.speak_resp3().is_ok() {
            text.push_str("resp 3\n");
        }
        for step in &self.steps {
            step.print(&mut text);
            if step.run(&mut talk).is_err() {
                break;
            }
            for (number, mut bytes) in talk.take_all().into_iter().enumerate() {
                while let Ok(Some((reply, len))) = reply::first(&bytes) {
                    text.push_str(&format!("{}= {reply}\n", name(number)));
                    bytes.drain(..len);
                }
            }
        }
        text
    }
}

/// The commands by which all records are compared: by their digest, or one by one where no command is about all of them.
fn end_questions(is_whole: bool, has_digests: bool) -> Vec<Vec<String>> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    if is_whole {
        return if has_digests { vec![words(&["DEBUG", "DIGEST"])] } else { Vec::new() };
    }
    let of_database = |database: &'static str| {
        // One of GET and HGETALL is refused, and the refusal says what the record is.
        let of_key =
            move |key: String| ["GET", "HGETALL", "PEXPIRETIME"].map(|command| words(&[command, &key]));
        std::iter::once(words(&["SELECT", database])).chain(forms::keys().flat_map(of_key))
    };
    forms::DATABASES.into_iter().flat_map(of_database).collect()
}

/// Asks the same over each connection. RESET ends an open transaction, which may hold records.
fn same_in_the_end(
    real: &mut Conversation<'_>,
    model: &mut Conversation<'_>,
    questions: &[Vec<String>],
) -> Result<(), String> {
    let reset = [vec!["RESET".to_owned()]];
    for connection in 0..CONNECTIONS {
        for words in reset.iter().chain(questions) {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let (found, expected) = (real.ask(connection, &words)?, model.ask(connection, &words)?);
            if found != expected {
                return Err(format!("{words:?} on {} is {found}, not {expected}", name(connection)));
            }
        }
    }
    Ok(())
}

/// The name of a connection in transcripts.
fn name(connection: usize) -> char {
    char::from(b'a' + connection as u8)
}

fn same(found: &[Vec<u8>], expected: &[Vec<u8>]) -> Result<(), String> {
    for (number, (found, expected)) in found.iter().zip(expected).enumerate() {
        if found != expected {
            let [found, expected] =
                [found, expected].map(|bytes| shortened(&bytes.escape_ascii().to_string()));
            return Err(format!("{} received {found}\n    expected {expected}", name(number)));
        }
    }
    Ok(())
}

fn shortened(text: &str) -> String {
    let shown: String = text.chars().take(600).collect();
    if shown.len() < text.len() { format!("{shown}… ({} characters)", text.len()) } else { shown }
}

impl Step {
    fn run(&self, talk: &mut Conversation<'_>) -> Result<(), String> {
        match self {
            Step::Send { connection, commands } => {
                for words in commands {
                    talk.command(*connection, words)?;
                }
                talk.settle()
            }
            Step::Wait(ms) => talk.subject.advance(*ms),
            Step::Sweep => talk.subject.sweep(),
            Step::Move => talk.subject.move_slots(),
            Step::HangUp(connection) => talk.hang_up(*connection),
        }
    }

    fn print(&self, text: &mut String) {
        match self {
            Step::Send { connection, commands } => {
                for (number, words) in commands.iter().enumerate() {
                    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
                    let mark = if number + 1 < commands.len() { ">>" } else { ">" };
                    text.push_str(&format!("{}{mark} {}\n", name(*connection), words.join(" ")));
                }
            }
            Step::Wait(ms) => text.push_str(&format!("@ {ms}\n")),
            Step::Sweep => text.push_str("swept\n"),
            Step::Move => text.push_str("moves\n"),
            Step::HangUp(connection) => text.push_str(&format!("{} hangs up\n", name(*connection))),
        }
    }
}

/// Holds subjects to the reference by programs of so many steps, one for each seed, each on a subject of its own.
///
/// # Errors
/// The smallest program found that is answered differently, as a transcript, with the difference and the seed.
pub fn hold(
    seeds: std::ops::Range<u64>,
    steps: usize,
    fresh: &dyn Fn() -> Box<dyn Subject>,
) -> Result<(), String> {
    for seed in seeds {
        let mut subject = fresh();
        let program = draw(seed, steps, &subject.traits());
        let Err(difference) = program.compare(&mut *subject) else { continue };
        let fails = |program: &Program| program.compare(&mut *fresh()).err();
        let (program, difference) = shrink::shrink(program, difference, &fails);
        return Err(format!("seed {seed}, {difference}\n\n{}", program.transcript(&subject.layout())));
    }
    Ok(())
}
