"""Files of one log.

disk.py          the file operations, as an interface
manifest.py      which segments there are; versioned
segment_file.py  walk a segment; torn tail or damage
recover.py       open after a stop or a crash
log_storage.py   write, roll, read, trim
reader.py        records by tag, by pieces
views.py         what it reads from, as interfaces
verify.py        find any flipped bit
cold.py          copies on any pyarrow file system
"""
