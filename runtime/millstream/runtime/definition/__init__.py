"""The definitions of grains: classes, marks, references, states and placement.

Owns the base classes of authors (`grain`), the analysis of a class (`grain_type`, `method`), its
marks (`markers`), references (`reference`), persistent states (`state`) and the contract of a state
store (`storage`). Reading starts at `grain.py`.
May import `codec` and `runtime`.
"""
