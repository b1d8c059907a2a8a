//! exp
mod work;
use std::io::Write;
use std::os::unix::fs::FileExt;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let data = work::Data::at(std::path::Path::new(&a[2]));
    if a[1] == "make" {
        let image = std::fs::read(&data.image).unwrap();
        let mut out = std::fs::File::create(&data.blocks).unwrap();
        let c = reflash::chunker::Chunker::parse("casync-64").unwrap();
        let s = reflash::scan::Scan {
            read_at: &|b, o| {
                b.copy_from_slice(&image[o as usize..o as usize + b.len()]);
                Ok(())
            },
            size: image.len() as u64,
            chunker: c,
            progress: &|_| {},
        };
        let (f, _) = s.run(&|_| Some(()));
        for b in f {
            let mut e = liblzma::write::XzEncoder::new(Vec::new(), 6);
            e.write_all(&image[b.offset as usize..(b.offset + b.size as u64) as usize])
                .unwrap();
            let v = e.finish().unwrap();
            out.write_all(&(v.len() as u32).to_le_bytes()).unwrap();
            out.write_all(&v).unwrap();
        }
        return;
    }
    let n: usize = a[3].parse().unwrap();
    for name in a[1].split(',') {
        let mut best = f64::MAX;
        let mut b = 0;
        for _ in 0..n {
            let t = std::time::Instant::now();
            b = work::run(name, &data, 1).unwrap();
            best = best.min(t.elapsed().as_secs_f64());
        }
        println!("{name:12} {:8.1} MB/s", b as f64 / best / 1e6);
    }
    let _ = std::fs::File::open(&data.image).map(|f| f.read_at(&mut [0], 0));
}
