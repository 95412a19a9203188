"""The claim for adapters: what is trained beside a frozen base, with peft, transformers and torchao as people use them."""
