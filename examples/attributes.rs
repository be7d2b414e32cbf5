//! Prints the groups of a store and the attributes of everything in it: `cargo run --release --example attributes
//! STORE`

use std::error::Error;

use ndarray::{ArrayD, IxDyn};
use npyfs::{Attribute, Store};

fn main() -> Result<(), Box<dyn Error>> {
    npyfs::worker_hook();
    let path = std::env::args().nth(1).ok_or("usage: attributes STORE")?;
    let store = Store::open(path)?;
    let mut groups = vec!["/".to_owned()];
    while let Some(group) = groups.pop() {
        print(&store, &group)?;
        let entries = store.entries(&group)?;
        groups.extend_from_slice(entries.directories());
        for entry in entries {
            print(&store, &entry.path)?;
        }
    }
    Ok(())
}

fn print(store: &Store, path: &str) -> Result<(), Box<dyn Error>> {
    println!("{path}");
    for attribute in store.attributes(path)? {
        println!("    {}: {}", attribute.name(), shown(&attribute));
    }
    Ok(())
}

/// Texts and numbers; whatever else there is by its type.
fn shown(attribute: &Attribute) -> String {
    if let Ok(text) = attribute.value::<String>() {
        return text;
    }
    let numbers: Result<ArrayD<i64>, _> = attribute.read();
    match (numbers, attribute.read::<f64, IxDyn>(), attribute.dtype()) {
        (Ok(numbers), ..) => numbers.to_string(),
        (_, Ok(numbers), _) => numbers.to_string(),
        (_, _, Some(dtype)) => format!("{dtype} {:?}", attribute.shape().unwrap_or_default()),
        (Err(e), ..) => e.to_string(),
    }
}
