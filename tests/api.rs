//! The public API on a demonstration store: what it reads, against `ndarray-npy` on the same virtual files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use ndarray::{Array1, Array2, ArrayD, Ix0, Ix1, Ix2, IxDyn, s};
use ndarray_npy::{ReadNpyExt, ReadableElement};
use npyfs::{Element, Error, Store};
use num_complex::Complex;
use tempfile::TempDir;

fn npyfs() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_npyfs"))
}

/// The stores that `npyfs demo` writes.
fn demo() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let stores = dir.path().join("stores");
    let done = Command::new(npyfs()).arg("demo").arg(&stores).output();
    let done = done.unwrap();
    assert!(done.status.success(), "{done:?}");
    (dir, stores)
}

fn open(path: impl AsRef<Path>) -> Store {
    Store::options().worker(npyfs()).open(path).unwrap()
}

/// Reads an array both ways; `true` if it is of this type.
fn agrees<T: Element + ReadableElement + PartialEq + std::fmt::Debug>(
    store: &Store,
    path: &str,
) -> bool {
    let array = store.array(path).unwrap();
    match array.read::<T, IxDyn>() {
        Ok(read) if array.dtype().to_string().contains('[') => {
            // ndarray-npy knows no times: they are the integers at the end of the file.
            let mut bytes = Vec::new();
            store.file(path).unwrap().read_to_end(&mut bytes).unwrap();
            let payload = bytes.split_off(bytes.len() - 8 * read.len());
            let times = payload
                .chunks_exact(8)
                .map(|b| i64::from_le_bytes(b.try_into().unwrap()));
            let found = store.array(path).unwrap().read::<i64, IxDyn>().unwrap();
            assert_eq!(
                found.into_raw_vec_and_offset().0,
                times.collect::<Vec<_>>(),
                "{path}"
            );
            true
        }
        Ok(read) => {
            let judge = ArrayD::<T>::read_npy(store.file(path).unwrap()).unwrap();
            assert_eq!(read, judge, "{path}");
            true
        }
        Err(Error::WrongType { .. }) => false,
        Err(e) => panic!("{path}: {e}"),
    }
}

#[test]
fn every_number_of_every_demonstration_store_is_what_ndarray_npy_reads() {
    let (_dir, stores) = demo();
    let store = open(&stores);
    let mut directories = vec!["/".to_owned()];
    let (mut numbers, mut texts) = (0, 0);
    while let Some(directory) = directories.pop() {
        let entries = store.entries(&directory).unwrap();
        // A commit shows the samples of its branch again.
        let below = entries.directories().iter();
        directories.extend(below.filter(|d| !d.contains("/commits")).cloned());
        for entry in entries {
            let path = &entry.path;
            let known = agrees::<f32>(&store, path)
                || agrees::<f64>(&store, path)
                || agrees::<i64>(&store, path)
                || agrees::<i32>(&store, path)
                || agrees::<u8>(&store, path)
                || agrees::<u16>(&store, path)
                || agrees::<u32>(&store, path)
                || agrees::<u64>(&store, path)
                || agrees::<i16>(&store, path)
                || agrees::<i8>(&store, path)
                || agrees::<bool>(&store, path)
                || agrees::<Complex<f64>>(&store, path);
            if known {
                numbers += 1;
                continue;
            }
            let text = store.array(path).unwrap().read::<String, IxDyn>();
            let text = text.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(text.shape(), entry.shape, "{path}");
            texts += 1;
        }
    }
    assert!(numbers > 100 && texts > 3, "{numbers} {texts}");
}

#[test]
fn the_first_page_of_the_documentation_holds() {
    let (_dir, stores) = demo();
    let store = open(stores.join("cells.h5df"));
    let scores: Array2<f32> = store.array("cell,gene#score").unwrap().read().unwrap();
    assert_eq!(scores.dim(), (1000, 200));
    let array = store.array("cell,gene#score.npy").unwrap();
    let some = array.slice::<f32, Ix2>(s![10..20, ..]).unwrap();
    assert_eq!(some, scores.slice(s![10..20, ..]));
    let some = array.slice::<f32, Ix1>(s![-1, ..;-7]).unwrap();
    assert_eq!(some, scores.slice(s![-1, ..;-7]));
    let one = array.slice::<f32, Ix0>(s![3, 4]).unwrap();
    assert_eq!(one.into_scalar(), scores[(3, 4)]);
    let none = array.slice::<f32, Ix2>(s![5..5, ..]).unwrap();
    assert_eq!(none.dim(), (0, 200));
    let names: Array1<String> = store.array("cell#").unwrap().read().unwrap();
    let raw: Array1<Vec<u8>> = store.array("cell#").unwrap().read().unwrap();
    assert_eq!(names.len(), 1000);
    assert_eq!(names.mapv(String::into_bytes), raw);
    let title = store.array("title").unwrap().read::<String, Ix0>();
    assert!(!title.unwrap().into_scalar().is_empty());
}

#[test]
fn what_is_asked_for_wrongly_is_named() {
    let (_dir, stores) = demo();
    let store = open(stores.join("cells.h5df"));
    let scores = store.array("cell,gene#score").unwrap();
    let said = |e: Error| e.to_string();
    assert_eq!(
        said(scores.read::<i32, Ix2>().unwrap_err()),
        "cell,gene#score.npy: elements of type <f4 cannot be read as i32"
    );
    assert_eq!(
        said(scores.read::<f32, Ix1>().unwrap_err()),
        "cell,gene#score.npy: 2 axes, where 1 are wanted"
    );
    assert_eq!(
        said(scores.slice::<f32, Ix2>(s![.., 0..201]).unwrap_err()),
        "cell,gene#score.npy: ..201 is outside of axis 1, which has 200 entries"
    );
    assert_eq!(
        said(store.array("nothing").unwrap_err()),
        "nothing: no such path in the store"
    );
    assert!(matches!(
        store.array("cell,gene#UMIs").unwrap_err(),
        Error::NotAnArray { .. }
    ));
    let absent = Store::options()
        .worker(npyfs())
        .open(stores.join("absent.h5"));
    assert_eq!(absent.unwrap_err().errno(), libc::ENOENT);
}

#[test]
fn a_directory_inside_a_store_is_opened_by_its_path() {
    let (_dir, stores) = demo();
    let whole = open(stores.join("plain.h5"));
    let part = open(stores.join("plain.h5:/images"));
    let read = |store: &Store, path: &str| {
        let mut bytes = Vec::new();
        let mut file = store.file(path).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(read(&part, "stack.npy"), read(&whole, "images/stack.npy"));
    assert!(matches!(
        part.array("pi").unwrap_err(),
        Error::NotFound { .. }
    ));
    let absent = Store::options()
        .worker(npyfs())
        .open(stores.join("plain.h5:/imagse"));
    let said = absent.unwrap_err().to_string();
    assert!(said.contains("did you mean /images?"), "{said}");
}

#[test]
fn a_store_is_shared_between_threads() {
    fn shared<T: Send + Sync>(value: T) -> T {
        value
    }
    let (_dir, stores) = demo();
    let store = shared(open(stores.join("cells.h5df")));
    let all: Array2<f32> = store.array("cell,gene#score").unwrap().read().unwrap();
    std::thread::scope(|scope| {
        for row in 0..8 {
            let (store, all) = (&store, &all);
            scope.spawn(move || {
                let array = store.array("cell,gene#score").unwrap();
                let read = array.slice::<f32, Ix1>(s![row * 100, ..]).unwrap();
                assert_eq!(read, all.row(row * 100));
            });
        }
    });
}

#[test]
fn parts_are_the_whole() {
    let (_dir, stores) = demo();
    let store = open(stores.join("plain.h5"));
    let stack = store.array("images/stack").unwrap();
    let whole: ArrayD<u8> = stack.read().unwrap();
    for rows in [0, 1, 7, 64, 1000, stack.part_rows().unwrap()] {
        let parts = stack.parts::<u8, IxDyn>(rows);
        assert_eq!(parts.len(), 64_usize.div_ceil(rows.max(1)));
        let parts: Vec<ArrayD<u8>> = parts.map(Result::unwrap).collect();
        let parts: Vec<_> = parts.iter().map(|part| part.view()).collect();
        assert_eq!(
            ndarray::concatenate(ndarray::Axis(0), &parts).unwrap(),
            whole
        );
    }
    let pi = store.array("pi").unwrap();
    let pi: Vec<_> = pi.parts::<f64, Ix0>(3).map(Result::unwrap).collect();
    assert_eq!(pi, [ndarray::arr0(std::f64::consts::PI)]);
    let wrong = stack.parts::<f32, IxDyn>(60).map(|part| part.is_err());
    assert_eq!(wrong.collect::<Vec<_>>(), [true, true]);
}

#[test]
fn attributes_are_read_with_their_types() {
    let (_dir, stores) = demo();
    let store = open(&stores);
    let of = |path: &str| store.attributes(path).unwrap();
    let [units] = &of("plain.h5/images/stack")[..] else {
        panic!("one attribute");
    };
    assert_eq!(
        (units.name(), units.value::<String>().unwrap().as_str()),
        ("units", "counts")
    );
    let matrix = of("cells.h5ad/X");
    let named = |name: &str| matrix.iter().find(|a| a.name() == name).unwrap();
    let encoding: String = named("encoding-type").value().unwrap();
    assert_eq!(encoding, "csr_matrix");
    let shape: Array1<i64> = named("shape").read().unwrap();
    assert_eq!(
        (shape.to_vec(), named("shape").shape()),
        (vec![200, 50], Some(vec![2]))
    );
    let said = |e: Error| e.to_string();
    assert_eq!(
        said(named("shape").value::<i64>().unwrap_err()),
        "cells.h5ad/X: attribute shape: 1 axes, where 0 are wanted"
    );
    assert_eq!(
        said(named("shape").read::<f32, Ix1>().unwrap_err()),
        "cells.h5ad/X: attribute shape: elements of type <i8 cannot be read as f32"
    );
    assert_eq!(
        said(store.attributes("nothing").unwrap_err()),
        "nothing: no such path in the store"
    );
}

#[test]
fn a_sparse_matrix_is_what_its_parts_are() {
    let (_dir, stores) = demo();
    let store = open(stores.join("cells.h5df"));
    let matrix = store.sparse::<u16>("cell,gene#UMIs").unwrap();
    let dense = matrix.to_dense(0);
    assert_eq!(dense.dim(), (1000, 200));
    let sum = |data: &mut dyn Iterator<Item = u16>| data.map(u64::from).sum::<u64>();
    assert_eq!(
        sum(&mut dense.iter().copied()),
        sum(&mut matrix.data.iter().copied())
    );
    assert!(matches!(
        store.sparse::<f32>("cell,gene#UMIs").unwrap_err(),
        Error::WrongType { .. }
    ));
    assert_eq!(
        store
            .sparse::<f32>("cell,gene#score")
            .unwrap_err()
            .to_string(),
        "cell,gene#score: no sparse matrix"
    );
    assert!(matches!(
        store.sparse::<f32>("cell,gene#none").unwrap_err(),
        Error::NotFound { .. }
    ));
}

#[test]
fn what_cannot_be_shown_is_refused_when_the_store_is_opened() {
    let (_dir, stores) = demo();
    let open = |change: &dyn Fn(npyfs::OpenOptions) -> npyfs::OpenOptions| {
        let options = change(Store::options().worker(npyfs()));
        options
            .open(stores.join("plain.h5"))
            .unwrap_err()
            .to_string()
    };
    assert!(open(&|options| options.at("7")).contains("commit"));
    assert!(open(&|options| options.checkout("none")).contains("none"));
    let endpoint = open(&|options| options.endpoint("ftp://host"));
    assert_eq!(endpoint, "endpoint: expected http(s)://HOST");
}

/// What is public beside the interface is hidden, and for tests: the examples do without.
#[test]
fn the_examples_and_these_tests_need_the_public_api_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let library = read(&root.join("src/lib.rs"));
    let public: Vec<_> = library.lines().filter(|l| l.starts_with("pub")).collect();
    let wanted = [
        "pub mod dtype {",
        "pub use api::{",
        "pub use dtype::DType;",
        "pub use command::main;",
        "pub mod mount;",
    ];
    assert_eq!(public, wanted);
    let examples = std::fs::read_dir(root.join("examples")).unwrap();
    let examples = examples.map(|entry| entry.unwrap().path());
    for path in examples.chain([root.join("tests/api.rs")]) {
        let named = ["npyfs::", "mount"].concat();
        assert!(!read(&path).contains(&named), "{}", path.display());
    }
}

/// A program that links the library becomes its own worker program, and libhdf5 stays out of it.
#[test]
fn the_example_is_its_own_worker_program() {
    let (_dir, stores) = demo();
    let example = npyfs().with_file_name("examples").join("read");
    let built = "cargo test builds it, unless it is told which targets to take";
    assert!(example.is_file(), "{}: {built}", example.display());
    let run = |argument: &str| {
        let mut command = Command::new(&example);
        // Nothing that could stand in.
        command.env_clear().arg(stores.join("cells.h5df"));
        let done = command
            .args((!argument.is_empty()).then_some(argument))
            .output();
        let done = done.unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    assert!(run("").contains("cell,gene#score.npy <f4 [1000, 200]"));
    assert!(run("cell,gene#score").starts_with("<f4 [1000, 200]: mean Some("));
}

#[test]
fn what_a_checkout_is_given_is_committed_and_read_again() {
    let (_dir, stores) = demo();
    let cells = stores.join("cells.h5df");
    let options = || Store::options().worker(npyfs());
    let before = std::fs::read(&cells).unwrap();
    let checkout = options().write(&cells, "work").unwrap();
    let ages: Array1<i32> = open(&cells).array("cell#age").unwrap().read().unwrap();
    checkout.write("cell#older", &(&ages + 1)).unwrap();
    let names = Array1::from_shape_fn(1000, |i| format!("name {i}"));
    checkout.write("cell#name.npy", &names).unwrap();
    let scores = Array2::from_shape_fn((1000, 200), |(i, j)| (i * j) as f64);
    // A view in another order, too.
    checkout.write("cell,gene#product", &scores).unwrap();
    checkout.write("gene,cell#product", &scores.t()).unwrap();
    checkout.write("flag", &ndarray::arr0(true)).unwrap();
    checkout.remove("cell#age").unwrap();
    // What a mount refuses is refused here.
    let short = checkout.write("cell#short", &Array1::<i64>::zeros(5));
    assert_eq!(short.unwrap_err().errno(), libc::EINVAL);
    assert!(matches!(
        checkout.remove("nothing"),
        Err(Error::NotFound { .. })
    ));
    assert_eq!(
        checkout.remove("cell#").unwrap_err().errno(),
        libc::ENOTEMPTY
    );
    let busy = options().write(&cells, "work").unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY, "{busy}");
    // A sparse matrix, member by member.
    let member = |name: &str| format!("cell,gene#few/{name}");
    checkout
        .write(&member("data"), &ndarray::arr1(&[1.5_f32, 2.5]))
        .unwrap();
    checkout
        .write(&member("indices"), &ndarray::arr1(&[3_i32, 5]))
        .unwrap();
    let incomplete = checkout.commit("too early").unwrap_err().to_string();
    assert!(incomplete.contains("indptr"), "{incomplete}");
    checkout
        .write(&member("shape"), &ndarray::arr1(&[1000_i64, 200]))
        .unwrap();
    // A member that is refused takes none of the others with it.
    let indptr = Array1::from_shape_fn(1001, |i| i.min(2) as i32);
    let refused = checkout.write(&member("indptr"), &indptr.slice(ndarray::s![..7]));
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
    checkout.write(&member("indptr"), &indptr).unwrap();
    checkout.sync().unwrap();
    assert!(open(&cells).array("cell#older").is_err());
    assert!(checkout.commit("all").unwrap().is_some());
    assert_eq!(checkout.commit("again").unwrap(), None);
    let store = open(&cells);
    let read = |path: &str| store.array(path).unwrap();
    assert_eq!(read("cell#older").read::<i32, Ix1>().unwrap(), &ages + 1);
    assert_eq!(read("cell#name").read::<String, Ix1>().unwrap(), names);
    assert_eq!(
        read("cell,gene#product").read::<f64, Ix2>().unwrap(),
        scores
    );
    assert_eq!(
        read("gene,cell#product").read::<f64, Ix2>().unwrap(),
        scores.t()
    );
    assert!(read("flag").read::<bool, Ix0>().unwrap()[()]);
    assert!(store.array("cell#age").is_err());
    let few = store.sparse::<f32>("cell,gene#few").unwrap();
    assert_eq!((few.indices, few.data), (vec![3, 5], vec![1.5, 2.5]));
    // It goes on on top of the commit, and attributes are set where the format lets them.
    checkout.write("cell#older", &ages).unwrap();
    checkout.commit("as before").unwrap().unwrap();
    drop(checkout);
    assert_eq!(
        open(&cells)
            .array("cell#older")
            .unwrap()
            .read::<i32, Ix1>()
            .unwrap(),
        ages
    );
    let plain = options().write(stores.join("plain.h5"), "units").unwrap();
    plain.write("new/x", &Array1::<u8>::zeros(3)).unwrap();
    let z = ndarray::arr1(&[Complex::new(1.5_f32, -2.0)]);
    plain.write("z", &z).unwrap();
    let texts = ndarray::arr2(&[["größe".to_owned(), String::new()]]);
    plain.write("texts", &texts).unwrap();
    plain.set_attribute("new/x", "units", "mV").unwrap();
    plain.set_attribute("/", "version", "7").unwrap();
    assert_eq!(
        plain.set_attribute("pi", "CLASS", "a").unwrap_err().errno(),
        libc::EPERM
    );
    plain.commit("units").unwrap().unwrap();
    let shown = open(stores.join("plain.h5"));
    let read = shown.array("texts").unwrap().read::<String, Ix2>();
    assert_eq!(read.unwrap(), texts);
    let array = shown.array("z").unwrap();
    assert_eq!(array.read::<Complex<f32>, Ix1>().unwrap(), z);
    let units = shown.attributes("new/x").unwrap();
    assert_eq!(units[0].value::<String>().unwrap(), "mV");
    assert_eq!(shown.attributes("/").unwrap()[0].value::<i64>().unwrap(), 7);
    assert_eq!(std::fs::read(&cells).unwrap(), before);
}

#[test]
fn a_commit_refuses_what_cannot_be_stored_any_more() {
    let (_dir, stores) = demo();
    let cells = stores.join("cells.h5df");
    let options = Store::options().worker(npyfs());
    let checkout = options.write(&cells, "axes").unwrap();
    let names = ndarray::arr1(&["a".to_owned(), "b".to_owned()]);
    checkout.write("kind#", &names).unwrap();
    let member = |name: &str| format!("kind,gene#few/{name}");
    let data = ndarray::arr1(&[1.5_f32, 2.5]);
    checkout.write(&member("data"), &data).unwrap();
    checkout.remove("kind#").unwrap();
    let refused = checkout.commit("an axis is missing").unwrap_err();
    assert!(refused.to_string().contains("kind"), "{refused}");
    checkout.write("kind#", &names).unwrap();
    let indices = ndarray::arr1(&[3_i32, 5]);
    checkout.write(&member("indices"), &indices).unwrap();
    let indptr = ndarray::arr1(&[0_i32, 1, 2]);
    checkout.write(&member("indptr"), &indptr).unwrap();
    let shape = ndarray::arr1(&[2_i64, 200]);
    checkout.write(&member("shape"), &shape).unwrap();
    assert!(checkout.commit("both").unwrap().is_some());
    let few = open(&cells).sparse::<f32>("kind,gene#few").unwrap();
    assert_eq!((few.indices, few.data), (vec![3, 5], vec![1.5, 2.5]));
}
