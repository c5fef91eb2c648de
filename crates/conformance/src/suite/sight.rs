//! Which writes a read sees that is sent the moment that they are answered: by the mode of reads, all, those of its own
//! connection, or a state of a moment ago.

use ordain_resp::client::command;

use crate::cluster::Shape;
use crate::reply;
use crate::subject::{Sight, Subject};

/// The number of writes.
const WRITES: u64 = 12;

fn ask(subject: &mut dyn Subject, connection: usize, words: &[&str]) -> Result<String, String> {
    subject.send(connection, &command(words));
    subject.settle()?;
    let received = subject.take(connection);
    let (reply, _) = reply::first(&received)?.ok_or("there is no reply")?;
    Ok(reply.to_string())
}

/// Writes over one connection and reads at once over it and over others, then again a moment later.
///
/// # Errors
/// A read that misses a write that it is to see, or shows what never was.
pub fn sight(shape: &Shape) -> Result<(), String> {
    let mut subject = shape.open();
    let subject = &mut *subject;
    let sight = subject.traits().sight();
    let connections: Vec<usize> = (0..4).map(|seat| subject.open(seat)).collect();
    for n in 1..=WRITES {
        let (value, before) = (n.to_string(), (n - 1).to_string());
        let writer = n as usize % connections.len();
        // Two keys, as both are seen as of one moment.
        let written = ask(subject, connections[writer], &["MSET", "one", &value, "two", &value])?;
        if written != "+OK" {
            return Err(format!("MSET is answered {written}"));
        }
        let both = |value: &str| format!("[\"{value}\" \"{value}\"]");
        for (number, connection) in connections.iter().enumerate() {
            let seen = ask(subject, *connection, &["MGET", "one", "two"])?;
            let may_be_late = match sight {
                Sight::All => false,
                Sight::Own => number != writer,
                Sight::Late => true,
            };
            let is_late = may_be_late && (seen == both(&before) || n == 1 && seen == "[_ _]");
            if seen != both(&value) && !is_late {
                return Err(format!("write {n} over {writer}, read over {number}, {sight:?}: {seen}"));
            }
        }
        subject.rest()?;
        for connection in &connections {
            let seen = ask(subject, *connection, &["MGET", "one", "two"])?;
            if seen != both(&value) {
                return Err(format!("a moment after write {n}: {seen}"));
            }
        }
    }
    Ok(())
}
