//! Commands: arrays of bulk strings.

use ordain_model::Args;

use crate::codec::reply::{bulk, number};

/// The bytes of a command.
pub fn command<W: AsRef<[u8]>>(words: &[W]) -> Vec<u8> {
    let mut commands = Commands::default();
    commands.command(words);
    commands.bytes
}

/// Appends a command to bytes that are to be sent.
pub fn write_command(words: &[&[u8]], out: &mut Vec<u8>) {
    number(b'*', words.len() as i64, out);
    words.iter().for_each(|word| bulk(word, out));
}

/// Commands, written one after the other.
#[derive(Debug, Default)]
pub struct Commands {
    /// Bytes to send.
    pub bytes: Vec<u8>,
    /// Number of commands, and so of the replies that will come.
    pub count: u32,
}

impl Commands {
    /// Begins a command of so many words, which are to follow.
    pub fn begin(&mut self, words: usize) -> &mut Commands {
        self.count += 1;
        number(b'*', words as i64, &mut self.bytes);
        self
    }

    /// Appends the next word of the command.
    pub fn word(&mut self, word: impl AsRef<[u8]>) -> &mut Commands {
        bulk(word.as_ref(), &mut self.bytes);
        self
    }

    /// Appends a number as the next word of the command.
    pub fn number(&mut self, n: i64) -> &mut Commands {
        self.word(n.to_string())
    }

    /// Appends each of these arguments as a word.
    pub fn args(&mut self, args: Args<'_>) -> &mut Commands {
        args.iter().for_each(|arg| _ = self.word(arg.bytes));
        self
    }

    /// Appends a whole command.
    pub fn command<W: AsRef<[u8]>>(&mut self, words: &[W]) -> &mut Commands {
        self.begin(words.len());
        words.iter().for_each(|word| _ = self.word(word));
        self
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
    }
}
