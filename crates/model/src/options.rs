//! Options of engines: what an option is called and takes, and the checked values of one engine.
//!
//! An option is written down once, as an [`OptionInfo`]. Flags, keys of configuration files, environment variables,
//! benchmarks, the simulator, `CONFIG GET`, the identity of a data directory and `ordain engines` are made from that.
//! An engine offers some options, each with a default of its own ([`Offer`]); [`Options`] are the values that one
//! engine runs with. A family reads what it needs from them and knows no flag.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::ids::Micros;

/// The description of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionInfo {
    /// The name, in kebab case: `plan-ahead`.
    pub name: &'static str,
    /// The word for the value in the help: `HOW`.
    pub value_name: &'static str,
    /// The option's effect, in a sentence or a few, without the last full stop.
    pub doc: &'static str,
    /// The kind of the value, and its range.
    pub kind: OptionKind,
    /// The value where an engine gives no default of its own. An engine without the option behaves by this value.
    pub default: OptionValue,
    /// True if the option is a flag, a key and a variable by its own name, beside `--option`.
    pub is_flag: bool,
    /// True if a data directory keeps its value: with another one the same log would have other results.
    pub is_identity: bool,
    /// True if all nodes of a cluster must have the same value.
    pub is_of_cluster: bool,
    /// True if the value can change while a node runs.
    pub changes_at_run_time: bool,
    /// The demand of one of the values on another option.
    pub needs: Option<Need>,
}

/// A value of an option that makes sense only with some values of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The value that has the demand.
    pub value: &'static str,
    /// The name of the other option.
    pub other: &'static str,
    /// The values that the other option may have then.
    pub values: &'static [&'static str],
    /// The reason otherwise, for the error: a clause such as "nothing is executed speculatively".
    pub why: &'static str,
}

/// The kind of an option's value, and its range, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionKind {
    /// A name out of a list.
    Name {
        /// The names.
        names: &'static [&'static str],
        /// The verdict on any other, for an error: "no such thing".
        wrong: &'static str,
    },
    /// `true` or `false`.
    Bool,
    /// A whole number of something.
    Integer {
        /// The plural of what is counted: `batches`.
        unit: &'static str,
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
    /// A length of time, with its unit: `200us`, `5ms`, `1s`.
    Duration {
        /// The shortest.
        min: Micros,
        /// The longest.
        max: Micros,
    },
    /// A number of bytes, as [`parse_size`] reads it.
    Bytes {
        /// The least.
        min: u64,
        /// The most.
        max: u64,
    },
}

/// A value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OptionValue {
    /// A name of the option's list.
    Name(&'static str),
    /// Yes or no.
    Bool(bool),
    /// A number.
    Integer(u64),
    /// A length of time.
    Duration(Micros),
    /// A number of bytes.
    Bytes(u64),
}

impl fmt::Display for OptionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            OptionValue::Name(name) => f.write_str(name),
            OptionValue::Bool(is_on) => is_on.fmt(f),
            OptionValue::Integer(number) | OptionValue::Bytes(number) => number.fmt(f),
            OptionValue::Duration(Micros(us)) => match us {
                0 => f.write_str("0us"),
                us if us % 1_000_000 == 0 => write!(f, "{}s", us / 1_000_000),
                us if us % 1_000 == 0 => write!(f, "{}ms", us / 1_000),
                us => write!(f, "{us}us"),
            },
        }
    }
}

impl fmt::Display for OptionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OptionKind::Name { names, .. } => f.write_str(&any_of(names)),
            OptionKind::Bool => f.write_str("true or false"),
            OptionKind::Integer { unit, min, max } if *max == u64::MAX => {
                write!(f, "{min} {unit} or more")
            }
            OptionKind::Integer { unit, min, max } => write!(f, "{min} to {max} {unit}"),
            OptionKind::Duration { min, max } => {
                write!(f, "{} to {}", OptionValue::Duration(*min), OptionValue::Duration(*max))
            }
            OptionKind::Bytes { min, max: u64::MAX } => write!(f, "{min} bytes or more"),
            OptionKind::Bytes { min, max } => write!(f, "{min} to {max} bytes"),
        }
    }
}

/// Names in a sentence: `a, b or c`.
pub fn any_of(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [name] => (*name).to_owned(),
        [names @ .., last] => format!("{} or {last}", names.join(", ")),
    }
}

/// The reason for which options are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// No engine has such an option.
    #[error("there is no option '{name}'; engine {engine} has: {}", .known.join(", "))]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// The engine.
        engine: &'static str,
        /// The options that it has.
        known: Vec<&'static str>,
    },
    /// The engine has no such option.
    #[error("{} is not for engine {engine}, which has no such option: leave it out, or say --engine {}", .option.written(.value), any_of(.engines))]
    NotOffered {
        /// The option.
        option: &'static OptionInfo,
        /// The value that was asked for.
        value: String,
        /// The engine.
        engine: &'static str,
        /// The engines that have it.
        engines: Vec<&'static str>,
    },
    /// A value that the option does not take.
    #[error("{}: {}", flag_of(.option), .option.wrong(.value))]
    Value {
        /// The option.
        option: &'static OptionInfo,
        /// The value that was asked for.
        value: String,
    },
    /// A value that makes no sense with that of another option.
    #[error(
        "{} is for --{} {}, and {}: leave it out, or say --{} {}", .option.written(.need.value), .need.other,
        any_of(.need.values), .need.why, .need.other, .need.values.first().unwrap_or(&"")
    )]
    Needs {
        /// The option.
        option: &'static OptionInfo,
        /// The demand.
        need: Need,
    },
    /// Two values in one place.
    #[error("{} and another value of it are both given: drop one", .option.written(.value))]
    Twice {
        /// The option.
        option: &'static OptionInfo,
        /// The second value.
        value: String,
    },
}

/// The flag by which an option is given.
fn flag_of(option: &OptionInfo) -> String {
    if option.is_flag { format!("--{}", option.name) } else { format!("--option {}", option.name) }
}

impl OptionInfo {
    /// The command line's words that give the option a value.
    pub fn written(&self, value: &str) -> String {
        match self.is_flag {
            true => format!("--{} {value}", self.name),
            false => format!("--option {}={value}", self.name),
        }
    }

    /// The error about a value that the option does not take.
    pub fn wrong(&self, value: &str) -> String {
        match self.kind {
            OptionKind::Name { names, wrong } => format!("'{value}' is {wrong}: {}", any_of(names)),
            kind => format!("'{value}' is out of range: it takes {kind}"),
        }
    }

    /// Reads a value.
    ///
    /// # Errors
    /// [`OptionError::Value`].
    pub fn parse(&'static self, text: &str) -> Result<OptionValue, OptionError> {
        let value = match self.kind {
            OptionKind::Name { names, .. } => {
                names.iter().find(|name| **name == text).map(|name| OptionValue::Name(name))
            }
            OptionKind::Bool => text.parse().ok().map(OptionValue::Bool),
            OptionKind::Integer { min, max, .. } => {
                let number = text.parse().ok().filter(|number| (min..=max).contains(number));
                number.map(OptionValue::Integer)
            }
            OptionKind::Duration { min, max } => {
                let length = parse_duration(text).filter(|length| (min..=max).contains(length));
                length.map(OptionValue::Duration)
            }
            OptionKind::Bytes { min, max } => {
                let bytes = parse_size(text).filter(|bytes| (min..=max).contains(bytes));
                bytes.map(OptionValue::Bytes)
            }
        };
        value.ok_or_else(|| OptionError::Value { option: self, value: text.to_owned() })
    }
}

/// Reads a length of time: a number with `us`, `ms` or `s` after it; 0 needs no unit.
pub fn parse_duration(text: &str) -> Option<Micros> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let unit = match unit {
        "" if number == 0 => 1,
        "us" => 1,
        "ms" => 1_000,
        "s" => 1_000_000,
        _ => return None,
    };
    number.checked_mul(unit).map(Micros)
}

/// Reads a size as Redis does: a number with `b`, `k`, `kb`, `m`, `mb`, `g` or `gb` after it, in any case. With a `b`, units
/// are powers of 1024, without one of 1000.
pub fn parse_size(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit: u64 = match &*unit.to_ascii_lowercase() {
        "" | "b" => 1,
        "k" => 1000,
        "kb" => 1 << 10,
        "m" => 1_000_000,
        "mb" => 1 << 20,
        "g" => 1_000_000_000,
        "gb" => 1 << 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}

/// An option as one engine has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The option.
    pub info: &'static OptionInfo,
    /// Its value unless another one is given.
    pub default: OptionValue,
}

impl Offer {
    /// The option with the default of its description.
    pub const fn of(info: &'static OptionInfo) -> Offer {
        Offer { info, default: info.default }
    }

    /// The option with a default of the engine's own.
    pub const fn with_default(info: &'static OptionInfo, default: OptionValue) -> Offer {
        Offer { info, default }
    }
}

/// The values of an engine's options: each is one that its option takes. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    engine: &'static str,
    offers: &'static [Offer],
    /// The values that were set, by name.
    given: BTreeMap<&'static str, OptionValue>,
}

impl Options {
    /// The defaults of an engine.
    pub const fn new(engine: &'static str, offers: &'static [Offer]) -> Options {
        Options { engine, offers, given: BTreeMap::new() }
    }

    /// The name of the engine.
    pub const fn engine(&self) -> &'static str {
        self.engine
    }

    /// True if the engine has an option.
    pub fn has(&self, info: &OptionInfo) -> bool {
        self.offers.iter().any(|offer| offer.info.name == info.name)
    }

    /// True if an option was set.
    pub fn is_given(&self, info: &OptionInfo) -> bool {
        self.given.contains_key(info.name)
    }

    /// The options that were set, with their values.
    pub fn given(&self) -> impl Iterator<Item = (&'static OptionInfo, OptionValue)> + '_ {
        self.iter().filter(|(info, _)| self.is_given(info))
    }

    /// Every option of the engine with its value, in the registry's order.
    pub fn iter(&self) -> impl Iterator<Item = (&'static OptionInfo, OptionValue)> + '_ {
        self.offers.iter().map(|offer| (offer.info, self.value(offer.info)))
    }

    /// The value of an option. Of one that the engine has not got, the description's default: every engine without it
    /// behaves like that.
    pub fn value(&self, info: &OptionInfo) -> OptionValue {
        let default =
            || self.offers.iter().find(|offer| offer.info.name == info.name).map(|offer| offer.default);
        self.given.get(info.name).copied().or_else(default).unwrap_or(info.default)
    }

    /// Sets an option that the engine has; of others nothing changes.
    #[must_use]
    pub fn with(mut self, info: &'static OptionInfo, value: OptionValue) -> Options {
        self.set(info, value);
        self
    }

    /// Sets an option that the engine has; of others nothing changes.
    pub fn set(&mut self, info: &'static OptionInfo, value: OptionValue) {
        if self.has(info) {
            self.given.insert(info.name, value);
        }
    }

    /// Holds the values to what they demand of each other.
    ///
    /// # Errors
    /// [`OptionError::Needs`].
    pub fn check(&self) -> Result<(), OptionError> {
        let named = |name: &str| self.iter().find(|(info, _)| info.name == name).map(|(_, value)| value);
        for (option, value) in self.iter() {
            let Some(need) = option.needs.filter(|need| need.value == value.to_string()) else { continue };
            let is_met = named(need.other).is_some_and(|other| need.values.contains(&&*other.to_string()));
            if !is_met {
                return Err(OptionError::Needs { option, need });
            }
        }
        Ok(())
    }

    /// The value of an option that takes names, as what the name stands for.
    pub fn choice<T: FromStr + Default>(&self, info: &OptionInfo) -> T {
        match self.value(info) {
            OptionValue::Name(name) => name.parse().unwrap_or_default(),
            _ => T::default(),
        }
    }

    /// The value of an option that is on or off.
    pub fn is_on(&self, info: &OptionInfo) -> bool {
        self.value(info) == OptionValue::Bool(true)
    }

    /// The value of an option that is a number, of whatever unit; 0 of one that is not.
    pub fn number(&self, info: &OptionInfo) -> u64 {
        match self.value(info) {
            OptionValue::Integer(number) | OptionValue::Bytes(number) => number,
            OptionValue::Duration(Micros(us)) => us,
            OptionValue::Name(_) | OptionValue::Bool(_) => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn option(name: &'static str, kind: OptionKind, default: OptionValue) -> OptionInfo {
        OptionInfo {
            name,
            value_name: "X",
            doc: "",
            kind,
            default,
            is_flag: false,
            is_identity: false,
            is_of_cluster: false,
            changes_at_run_time: false,
            needs: None,
        }
    }

    static COLOUR: OptionInfo = OptionInfo {
        is_flag: true,
        ..option(
            "colour",
            OptionKind::Name { names: &["red", "blue"], wrong: "no colour" },
            OptionValue::Name("red"),
        )
    };
    static SHINE: OptionInfo = OptionInfo {
        needs: Some(Need { value: "true", other: "colour", values: &["blue"], why: "red is dull" }),
        ..option("shine", OptionKind::Bool, OptionValue::Bool(false))
    };
    static COUNT: OptionInfo =
        option("count", OptionKind::Integer { unit: "things", min: 1, max: 9 }, OptionValue::Integer(3));
    static WAIT: OptionInfo = option(
        "wait",
        OptionKind::Duration { min: Micros(0), max: Micros(2_000_000) },
        OptionValue::Duration(Micros(0)),
    );
    static ROOM: OptionInfo =
        option("room", OptionKind::Bytes { min: 1, max: 1 << 20 }, OptionValue::Bytes(1 << 10));
    static OFFERS: [Offer; 4] = [
        Offer::with_default(&COLOUR, OptionValue::Name("blue")),
        Offer::of(&SHINE),
        Offer::of(&COUNT),
        Offer::of(&WAIT),
    ];

    #[test]
    fn every_kind_is_read_within_its_range_and_written_as_it_is_read() {
        for (info, texts, wrong) in [
            (&COLOUR, &["red", "blue"][..], &["green", "Red", ""][..]),
            (&SHINE, &["true", "false"], &["yes", "1", ""]),
            (&COUNT, &["1", "9"], &["0", "10", "-1", "3x", ""]),
            (&WAIT, &["0us", "999us", "5ms", "2s"], &["5", "3s", "1h", "-1ms", "us"]),
            (&ROOM, &["1", "1024", "1048576"], &["0", "2mb", "much"]),
        ] {
            for text in texts {
                assert_eq!(info.parse(text).unwrap().to_string(), *text);
            }
            for text in wrong {
                let refusal = info.parse(text).unwrap_err();
                assert_eq!(refusal, OptionError::Value { option: info, value: (*text).to_owned() });
                let text_of = refusal.to_string();
                assert!(text_of.contains(&format!("'{text}'")) && text_of.contains(info.name), "{text_of}");
            }
        }
        assert_eq!(ROOM.parse("1kb"), Ok(OptionValue::Bytes(1 << 10)));
        assert_eq!(WAIT.parse("0"), Ok(OptionValue::Duration(Micros(0))));
        assert_eq!(
            COUNT.parse("12").unwrap_err().to_string(),
            "--option count: '12' is out of range: it takes 1 to 9 things"
        );
        assert_eq!(
            COLOUR.parse("green").unwrap_err().to_string(),
            "--colour: 'green' is no colour: red or blue"
        );
    }

    #[test]
    fn values_are_what_was_set_or_else_the_engines_or_else_the_descriptions_default() {
        let options = Options::new("paint", &OFFERS);
        assert_eq!(options.value(&COLOUR), OptionValue::Name("blue"));
        assert_eq!((options.number(&COUNT), options.is_on(&SHINE)), (3, false));
        let set = options.clone().with(&COUNT, OptionValue::Integer(7)).with(&ROOM, OptionValue::Bytes(7));
        assert_eq!((set.number(&COUNT), set.number(&ROOM)), (7, 1 << 10), "paint has no room");
        assert!(set.is_given(&COUNT) && !set.is_given(&ROOM) && !set.has(&ROOM));
        let names: Vec<String> = set.iter().map(|(info, value)| format!("{}={value}", info.name)).collect();
        assert_eq!(names, ["colour=blue", "shine=false", "count=7", "wait=0us"]);
    }

    #[test]
    fn a_value_may_need_one_of_another_option() {
        let shining = Options::new("paint", &OFFERS).with(&SHINE, OptionValue::Bool(true));
        assert_eq!(shining.check(), Ok(()));
        let red = shining.with(&COLOUR, OptionValue::Name("red"));
        assert_eq!(
            red.check().unwrap_err().to_string(),
            "--option shine=true is for --colour blue, and red is dull: leave it out, or say --colour blue"
        );
    }

    #[test]
    fn sizes_and_times_have_units() {
        for (text, bytes) in
            [("200mb", Some(200 << 20)), ("1G", Some(1_000_000_000)), ("x", None), ("1tb", None)]
        {
            assert_eq!(parse_size(text), bytes, "{text}");
        }
        for (text, us) in
            [("3s", Some(3_000_000)), ("0", Some(0)), ("7", None), ("99999999999999999999s", None)]
        {
            assert_eq!(parse_duration(text), us.map(Micros), "{text}");
        }
    }
}
