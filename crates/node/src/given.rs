//! Options of an engine as people write them: by name, before an engine has checked them.
//!
//! They come from flags, the environment and files, in this order, and each of these may hold some. Which engine is to
//! check them is known only when all have been read. In a file an option that is a flag is a key of its own; any
//! option may stand in the table `[option]`.

use std::collections::BTreeMap;
use std::fmt;

use ordain_engines::registry;
use ordain_model::OptionInfo;
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The key of the table that takes any option.
const TABLE: &str = "option";

/// Values of options by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    texts: BTreeMap<String, String>,
    /// Keys of a file that nothing is known by.
    unknown: Vec<String>,
}

/// A key of a file that is neither an option nor anything else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "line {line}: unknown key `{key}`: a key is named as the flag of `ordain serve` is, and what has no flag stands in the table \
     [option]"
)]
pub struct UnknownKey {
    /// The key.
    key: String,
    /// Where in the file it is.
    line: usize,
}

impl Given {
    /// Adds a value. False: the option has one already, which stays.
    pub fn put(&mut self, name: impl Into<String>, text: impl Into<String>) -> bool {
        let name = name.into();
        let is_new = !self.texts.contains_key(&name);
        if is_new {
            self.texts.insert(name, text.into());
        }
        is_new
    }

    /// The value given for an option.
    pub fn get(&self, info: &OptionInfo) -> Option<&str> {
        self.texts.get(info.name).map(String::as_str)
    }

    /// All that was given.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(name, text)| (name.as_str(), text.as_str()))
    }

    /// Fills what was not given from another place.
    #[must_use]
    pub fn or(mut self, other: &Given) -> Given {
        for (name, text) in other.iter() {
            self.put(name, text);
        }
        self
    }

    /// Refuses keys of a file that nothing is known by.
    ///
    /// # Errors
    /// The first of them, and where in the text it is.
    pub fn check_keys(&self, text: &str) -> Result<(), UnknownKey> {
        let Some(key) = self.unknown.first().cloned() else { return Ok(()) };
        let is_there = |line: &str| {
            let line = line.trim_start().trim_start_matches(['[', '"', '\'']);
            let rest = line.strip_prefix(&*key);
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || "-_".contains(c)))
        };
        let line = text.lines().position(is_there).map_or(1, |at| at + 1);
        Err(UnknownKey { key, line })
    }
}

/// The content of a key of a file.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Bool(bool),
    Integer(i64),
    Real(f64),
    Text(String),
    Table(BTreeMap<String, Entry>),
    Other(serde::de::IgnoredAny),
}

impl Entry {
    /// The value, if it is one.
    fn text(self) -> Option<String> {
        match self {
            Entry::Bool(is_on) => Some(is_on.to_string()),
            Entry::Integer(number) => Some(number.to_string()),
            Entry::Real(number) => Some(number.to_string()),
            Entry::Text(text) => Some(text),
            Entry::Table(_) | Entry::Other(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Given, D::Error> {
        deserializer.deserialize_map(Keys)
    }
}

/// Takes what the keys of a file hold that are no fields.
struct Keys;

impl<'de> Visitor<'de> for Keys {
    type Value = Given;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("options by name")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Given, A::Error> {
        let mut given = Given::default();
        while let Some((key, entry)) = map.next_entry::<String, Entry>()? {
            let name = key.replace('_', "-");
            let is_flag = registry::option(&name).is_some_and(|info| info.is_flag);
            let entries: Vec<(String, Entry)> = match entry {
                Entry::Table(table) if key == TABLE => table.into_iter().collect(),
                entry if is_flag => vec![(name, entry)],
                _ => {
                    given.unknown.push(key);
                    continue;
                }
            };
            for (name, entry) in entries {
                let name = name.replace('_', "-");
                let Some(text) = entry.text() else {
                    return Err(A::Error::custom(format_args!("{name}: an option has one value: name it")));
                };
                if !given.put(&*name, text) {
                    return Err(A::Error::custom(format_args!("{name} is given twice: drop one")));
                }
            }
        }
        Ok(given)
    }
}

impl Serialize for Given {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let is_flag = |name: &str| registry::option(name).is_some_and(|info| info.is_flag);
        let (flags, others): (Vec<_>, Vec<_>) = self.iter().partition(|(name, _)| is_flag(name));
        let mut map = serializer.serialize_map(None)?;
        for (name, text) in flags {
            map.serialize_entry(name, &Written(text))?;
        }
        if !others.is_empty() {
            let table: BTreeMap<_, _> =
                others.into_iter().map(|(name, text)| (name, Written(text))).collect();
            map.serialize_entry(TABLE, &table)?;
        }
        map.end()
    }
}

/// A value as a file has it: bare if it can be.
struct Written<'a>(&'a str);

impl Serialize for Written<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match (self.0.parse::<bool>(), self.0.parse::<i64>()) {
            (Ok(is_on), _) => serializer.serialize_bool(is_on),
            (_, Ok(number)) => serializer.serialize_i64(number),
            _ => serializer.serialize_str(self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    #[serde(rename_all = "kebab-case")]
    struct File {
        threads: u16,
        #[serde(flatten)]
        options: Given,
        #[serde(skip_serializing_if = "Option::is_none")]
        tls: Option<BTreeMap<String, String>>,
    }

    fn given(texts: &[(&str, &str)]) -> Given {
        let mut given = Given::default();
        texts.iter().for_each(|(name, text)| assert!(given.put(*name, *text)));
        given
    }

    #[test]
    fn options_stand_among_other_keys_or_in_a_table_of_their_own() {
        let text = "threads = 2\nplan_ahead = 5\nbalance = false\nreads = \"strict\"\n[option]\nwindow = 7\n[tls]\na = \"b\"\n";
        let file: File = toml::from_str(text).unwrap();
        let wanted =
            given(&[("plan-ahead", "5"), ("balance", "false"), ("reads", "strict"), ("window", "7")]);
        assert_eq!((file.threads, &file.options), (2, &wanted));
        let again: File = toml::from_str(&toml::to_string(&file).unwrap()).unwrap();
        assert_eq!((again.options, again.tls), (file.options, file.tls));
    }

    #[test]
    fn a_key_that_nothing_is_known_by_is_named_with_its_line() {
        for (line, key) in
            [("partition = 3", "partition"), ("window = 3", "window"), ("[tables]\na = 1", "tables")]
        {
            let text = format!("threads = 1\nreads = \"strict\"\n{line}\n");
            let file: File = toml::from_str(&text).unwrap();
            let refusal = file.options.check_keys(&text).unwrap_err().to_string();
            assert!(refusal.starts_with(&format!("line 3: unknown key `{key}`")), "{refusal}");
        }
        for (text, word) in [
            ("reads = \"strict\"\n[option]\nreads = \"session\"", "reads is given twice"),
            ("[option]\nwindow = [1, 2]", "one value"),
        ] {
            let refusal = toml::from_str::<File>(&format!("threads = 1\n{text}")).unwrap_err().to_string();
            assert!(refusal.contains(word), "{refusal}");
        }
    }

    #[test]
    fn what_is_given_first_counts() {
        let flags = given(&[("reads", "strict"), ("window", "1")]);
        let file = given(&[("reads", "session"), ("balance", "false")]);
        assert_eq!(flags.or(&file), given(&[("reads", "strict"), ("window", "1"), ("balance", "false")]));
    }
}
