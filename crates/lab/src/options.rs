//! Options of engines on a command line: flags made from their descriptions, and `--option NAME=VALUE`.
//!
//! A command describes its flags with [`OptionFlags`]. [`OptionArgs`] takes one value of each option and [`ComparedArgs`]
//! several, which are compared. Which engine checks them is known only when all is read.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use ordain_engines::registry;
use ordain_model::{OptionInfo, OptionKind};
use ordain_node::given::Given;
use serde::Deserialize;

use crate::report::grouped;

/// The flags that a command has for options.
pub trait OptionFlags: Clone + Debug + Default + Send + Sync + 'static {
    /// True: `ORDAIN_*` variables do for flags.
    const HAS_ENVIRONMENT: bool = false;
    /// True: several values of an option are taken, separated by commas.
    const IS_SEVERAL: bool = false;
    /// True: a name that an option does not take is wrong usage. If not, the engine refuses it.
    const CHECKS_NAMES: bool = true;
    /// Text of the help after a default.
    const ELSE: &'static str = "";

    /// The flag of an option, if it has one here.
    fn flag(info: &OptionInfo) -> Option<&'static str> {
        info.is_flag.then_some(info.name)
    }
}

/// The flag that takes any option.
const ANY: &str = "option";

/// The id of an option's flag among clap's arguments, where flags of other names may have the option's.
fn id_of(info: &OptionInfo) -> String {
    format!("option {}", info.name)
}

/// The defaults of an option in words: each with the engines that have it.
pub fn default_of(info: &OptionInfo) -> String {
    let mut defaults = grouped(registry::engines().filter_map(|engine| {
        let offer = engine.offers().iter().find(|offer| offer.info.name == info.name)?;
        Some((offer.default.to_string(), engine.name()))
    }));
    defaults.sort_by_key(|(_, engines)| std::cmp::Reverse(engines.len()));
    let only = engines_of(info);
    let words = defaults.iter().enumerate().map(|(i, (value, engines))| match (i, &only) {
        (0, None) => value.clone(),
        _ => format!("{value} with {}", engines.join(", ")),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The engines that have an option, if not all have.
fn engines_of(info: &OptionInfo) -> Option<Vec<&'static str>> {
    Some(registry::engines_with(info)).filter(|engines| engines.len() < registry::engines().count())
}

fn help<D: OptionFlags>(info: &OptionInfo) -> String {
    let range = match info.kind {
        OptionKind::Name { .. } | OptionKind::Bool if D::IS_SEVERAL => format!(": {}", info.kind),
        OptionKind::Name { .. } | OptionKind::Bool => String::new(),
        kind => format!(" ({kind})"),
    };
    // Benchmarks compare; the values are explained where one is chosen.
    let doc =
        if D::IS_SEVERAL { info.doc.split(['.', ':', ';']).next().unwrap_or(info.doc) } else { info.doc };
    let several = if D::IS_SEVERAL { "; several are compared" } else { "" };
    format!("{doc}{range}{several} [default: {}{}]", default_of(info), D::ELSE)
}

fn argument<D: OptionFlags>(info: &'static OptionInfo, flag: &'static str) -> Arg {
    let is_checked = D::CHECKS_NAMES || !matches!(info.kind, OptionKind::Name { .. });
    let mut arg = Arg::new(id_of(info)).long(flag).value_name(info.value_name).help(help::<D>(info));
    arg = arg.value_parser(move |text: &str| match info.parse(text) {
        Err(_) if is_checked => Err(info.wrong(text)),
        _ => Ok(text.to_owned()),
    });
    if D::IS_SEVERAL {
        arg = arg.value_delimiter(',').action(ArgAction::Append);
    } else if info.kind == OptionKind::Bool {
        arg = arg.num_args(0..=1).default_missing_value("true");
    }
    if D::HAS_ENVIRONMENT {
        arg = arg.env(variable(info));
    }
    arg
}

/// The environment variable of an option that is a flag.
pub fn variable(info: &OptionInfo) -> String {
    format!("ORDAIN_{}", info.name.to_uppercase().replace('-', "_"))
}

/// The arguments of a command.
fn augment<D: OptionFlags>(command: Command) -> Command {
    let flags = registry::all_options().into_iter().filter_map(|info| Some((info, D::flag(info)?)));
    let command = flags.fold(command, |command, (info, flag)| command.arg(argument::<D>(info, flag)));
    let several = if D::IS_SEVERAL { "; several values of one are compared" } else { "" };
    let any = Arg::new(ANY)
        .long(ANY)
        .value_name("NAME=VALUE")
        .action(ArgAction::Append)
        .help(format!("An option of the engine by name, repeated or with commas between{several}; `ordain engines` lists them"))
        .value_parser(|text: &str| match text.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => Ok(text.to_owned()),
            _ => Err("an option is given as NAME=VALUE".to_owned()),
        });
    command.arg(if D::HAS_ENVIRONMENT { any.env("ORDAIN_OPTION") } else { any })
}

/// The options given, by name; the command line beats the environment.
fn collect<D: OptionFlags>(matches: &ArgMatches) -> Result<BTreeMap<String, Vec<String>>, clap::Error> {
    let mut all: Vec<(String, Vec<String>, bool)> = Vec::new();
    let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
    for info in registry::all_options().into_iter().filter(|info| D::flag(info).is_some()) {
        let id = id_of(info);
        if let Some(values) = matches.get_many::<String>(&id) {
            all.push((info.name.to_owned(), values.cloned().collect(), is_typed(&id)));
        }
    }
    for texts in matches.get_many::<String>(ANY).into_iter().flatten() {
        // Behind a comma is another option, or another value of the same.
        for part in texts.split(',') {
            match (part.split_once('='), all.last_mut()) {
                (Some((name, value)), _) => {
                    all.push((name.to_owned(), vec![value.to_owned()], is_typed(ANY)))
                }
                (None, Some((_, values, _))) => values.push(part.to_owned()),
                (None, None) => {}
            }
        }
    }
    let mut given: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for is_wanted in [true, false] {
        let mut these = BTreeMap::new();
        for (name, values, _) in all.iter().filter(|(_, _, is_typed)| *is_typed == is_wanted) {
            if these.insert(name.clone(), values.clone()).is_some() {
                return Err(refusal(&format!("{name} is given twice: drop one")));
            }
        }
        these.into_iter().for_each(|(name, values)| _ = given.entry(name).or_insert(values));
    }
    match given.iter().find(|(_, values)| !D::IS_SEVERAL && values.len() > 1) {
        Some((name, _)) => Err(refusal(&format!("{name} is given several values, and takes one"))),
        None => Ok(given),
    }
}

fn refusal(text: &str) -> clap::Error {
    clap::Error::raw(ErrorKind::ValueValidation, format!("{text}\n"))
}

/// One value of each option.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(from = "Given")]
pub struct OptionArgs<D> {
    /// The options given, by name.
    pub given: Given,
    flags: PhantomData<D>,
}

impl<D> From<Given> for OptionArgs<D> {
    fn from(given: Given) -> OptionArgs<D> {
        OptionArgs { given, flags: PhantomData }
    }
}

impl<D: OptionFlags> clap::FromArgMatches for OptionArgs<D> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut given = Given::default();
        for (name, values) in collect::<D>(matches)? {
            values.into_iter().for_each(|value| _ = given.put(&*name, value));
        }
        Ok(given.into())
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = OptionArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<D: OptionFlags> clap::Args for OptionArgs<D> {
    fn augment_args(command: Command) -> Command {
        augment::<D>(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        augment::<D>(command)
    }
}

/// Several values of each option, which are compared.
#[derive(Clone, Debug, Default)]
pub struct ComparedArgs {
    /// By the option's name.
    pub given: BTreeMap<String, Vec<String>>,
}

impl clap::FromArgMatches for ComparedArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(ComparedArgs { given: collect::<Bench>(matches)? })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ComparedArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for ComparedArgs {
    fn augment_args(command: Command) -> Command {
        augment::<Bench>(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        augment::<Bench>(command)
    }
}

/// `ordain bench WORKLOAD`.
#[derive(Clone, Debug, Default)]
pub struct Bench;

impl OptionFlags for Bench {
    const IS_SEVERAL: bool = true;

    fn flag(info: &OptionInfo) -> Option<&'static str> {
        match info.name {
            // The bank has a balance of its own.
            "balance" => Some("balance-threads"),
            // There it is whether a checkpoint is taken, and how.
            "checkpoint-mode" => None,
            name => info.is_flag.then_some(name),
        }
    }
}

/// Commands that take `--option` alone.
#[derive(Clone, Debug, Default)]
pub struct Plain;

impl OptionFlags for Plain {
    fn flag(_: &OptionInfo) -> Option<&'static str> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use ordain_engines::registry::Engine;

    #[derive(Debug, Parser)]
    struct Compare {
        #[command(flatten)]
        options: ComparedArgs,
    }

    #[derive(Debug, Parser)]
    struct One {
        #[command(flatten)]
        options: OptionArgs<Plain>,
    }

    fn compared(args: &[&str]) -> Result<BTreeMap<String, Vec<String>>, String> {
        let parsed = Compare::try_parse_from([&["x"], args].concat());
        parsed.map(|parsed| parsed.options.given).map_err(|error| error.to_string())
    }

    /// The least and the most, or the first and the last.
    fn two_values(info: &OptionInfo) -> [String; 2] {
        match info.kind {
            OptionKind::Name { names, .. } => [names[0].to_owned(), names[names.len() - 1].to_owned()],
            OptionKind::Bool => ["true".to_owned(), "false".to_owned()],
            OptionKind::Integer { min, max, .. } | OptionKind::Bytes { min, max } => {
                [min.to_string(), max.to_string()]
            }
            OptionKind::Duration { min, max } => [format!("{}us", min.0), format!("{}us", max.0)],
        }
    }

    #[test]
    fn a_benchmark_compares_several_values_of_each_option_however_they_are_given() {
        for info in registry::all_options() {
            let values = two_values(info);
            let wanted = BTreeMap::from([(info.name.to_owned(), values.to_vec())]);
            let [first, second] = &values;
            let any = format!("{}={first},{second}", info.name);
            assert_eq!(compared(&["--option", &any]).as_ref(), Ok(&wanted));
            let Some(flag) = Bench::flag(info).map(|flag| format!("--{flag}")) else { continue };
            assert_eq!(compared(&[&flag, &values.join(",")]).as_ref(), Ok(&wanted));
            let refusal = compared(&[&flag, first, "--option", &any]).unwrap_err();
            assert!(refusal.contains(&format!("{} is given twice", info.name)), "{refusal}");
            let refusal = compared(&[&flag, "nonsense"]).unwrap_err();
            assert!(refusal.contains("'nonsense' is"), "{refusal}");
        }
        let both = BTreeMap::from([
            ("reads".to_owned(), vec!["strict".to_owned()]),
            ("window".to_owned(), vec!["1".to_owned(), "2".to_owned()]),
        ]);
        assert_eq!(compared(&["--option", "reads=strict,window=1,2"]), Ok(both));
    }

    #[test]
    fn one_value_of_each_option_is_taken_by_name() {
        for info in registry::all_options() {
            let [first, second] = two_values(info);
            let parse = |text: &str| One::try_parse_from(["x", "--option", text]);
            let parsed = parse(&format!("{}={first}", info.name)).unwrap();
            assert_eq!(parsed.options.given.iter().collect::<Vec<_>>(), [(info.name, &*first)]);
            let refusal = parse(&format!("{}={first},{second}", info.name)).unwrap_err().to_string();
            assert!(refusal.contains("takes one"), "{refusal}");
        }
        for text in ["window", "=1", "window="] {
            let refusal = One::try_parse_from(["x", "--option", text]).unwrap_err().to_string();
            assert!(refusal.contains("NAME=VALUE"), "{refusal}");
        }
    }

    #[test]
    fn the_help_has_the_engines_defaults() {
        let of = |name: &str| default_of(registry::option(name).unwrap());
        assert_eq!(of("reads"), "ordered with calvin, calvin-paper, qstore, session with paxflow");
        assert_eq!(
            (of("execution"), of("window")),
            ("auto with qstore".to_owned(), "2000 with calvin, calvin-paper, paxflow, qstore".to_owned())
        );
        assert!(registry::engines().count() > 1 && Engine::default().name() == "calvin");
    }
}
